"""What a campaign does with its chunks: a range of the audience is read, who fits the expression gets an action."""

import asyncio
from collections.abc import AsyncIterator
from functools import lru_cache

from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.audience.schema import AudienceTerms, read_audience
from tickwright.capabilities.batches.expressions import Expression, compile_expression
from tickwright.ports.batches import Action, FieldType, OpenChunk, PlannedChunk, Run
from tickwright.ports.probe import NO_PROBE, Probe

COMPILED_MAX = 256


class CampaignWork:
    """Implements :class:`tickwright.ports.batches.BatchWork`.

    Args:
        audiences: That this process can read.
    """

    def __init__(self, audiences: Audiences, *, probe: Probe = NO_PROBE) -> None:
        self._audiences, self._probe = audiences, probe

    async def plan(self, run: Run) -> AsyncIterator[PlannedChunk]:
        """Cut the audience into ranges of ``chunk_rows`` members."""
        terms = read_audience(run.definition["audience"])
        async with self._audiences.open(terms) as audience:
            async for chunk in audience.cut(run.definition["chunk_rows"]):
                yield chunk

    async def work(self, chunk: OpenChunk) -> None:
        """Read one range, judge, and complete it with an action for each selected client."""
        definition, now = chunk.run.definition, chunk.run.slot_at
        terms = read_audience(definition["audience"])
        judge = await asyncio.to_thread(_judge, definition["expression"], terms)
        actions: list[Action] = []
        async with (
            self._audiences.open(terms, chunk.value) as audience,
            audience.read(chunk.value, judge, now) as reading,
        ):
            async for piece in reading:
                actions += piece
        result = reading.result
        result.actions = actions
        await self._probe.reached("campaigns.chunk_read", execution=chunk.run.execution_id, number=chunk.number)
        async with chunk.complete(result):
            pass


def _judge(text: str, terms: AudienceTerms) -> Expression:
    return _compiled(text, tuple(terms.types.items()))


@lru_cache(maxsize=COMPILED_MAX)
def _compiled(text: str, types: tuple[tuple[str, FieldType], ...]) -> Expression:
    return compile_expression(text, dict(types))
