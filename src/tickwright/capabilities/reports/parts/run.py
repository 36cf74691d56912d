"""One part in this process's hands: brought into a file, put away, and written into the ledger under its claim.

::

    rows ──▶ NDJSON file ──put away──▶ marked ──finish──▶ done
      │ it raises, or takes too long: due again after 1, 5, 25 s …, or failed for good

Whatever a listener raises fails its part alone. What the ledger does not hear, because the database is away, it is told
for as long as the claim lives.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

import structlog

from tickwright.capabilities.reports.parts.fetch import Bringers
from tickwright.capabilities.reports.parts.running import HeldPart
from tickwright.capabilities.reports.parts.storage import PartPlaces
from tickwright.capabilities.reports.parts.store import Claim, Kept, PartsStore
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.failure_words import failure_of
from tickwright.engine.claimed_work import write_surely
from tickwright.observe import traces
from tickwright.ports.ids import random_token
from tickwright.ports.probe import NO_PROBE, Probe
from tickwright.ports.reports import PartFacts
from tickwright.ports.service import ends_task, take_cancels_back
from tickwright.ports.session import Session

RETRY_FACTOR = 5.0
RETRY_CAP_S = 300.0

_log = structlog.get_logger("tickwright.reports")


class PartRuns:
    """Carries claimed parts out, any number at a time.

    Args:
        bringers: What this process can bring.
        folder: Where rows are spooled; nothing of a part stays there.
    """

    def __init__(
        self,
        parts: PartsStore,
        places: PartPlaces,
        session: Session,
        bringers: Bringers,
        folder: Path,
        *,
        probe: Probe = NO_PROBE,
    ) -> None:
        self._parts, self._places, self._session = parts, places, session
        self._bringers, self._folder, self._probe = bringers, folder, probe

    async def run(self, held: HeldPart) -> str:
        """Bring it and write that down; return what became of it: ``done``, ``retried``, ``failed`` or ``late``.

        Raises:
            CancelledError: It was cancelled; nothing of it is written.
        """
        claim = held.claim
        if claim.attempt > claim.listener.attempts:
            return await self._fail(held, f"the process that ran it was lost {claim.attempt - 1} times", final=True)
        path = self._folder / f"{claim.key.report_id}-{claim.key.listener}-{random_token(8)}.ndjson"
        try:
            facts = await self._within(held, path)
            await self._probe.reached("reports.part_brought", key=claim.key, facts=facts)
            kept = await self._places.put(claim.key, path, facts, plan=claim.plan)
            return "late" if kept is None else await self._finish(held, kept)
        except BaseException as error:  # what a function raises fails its part, not the others and not the process
            if ends_task(error):
                raise
            await take_cancels_back()
            code, text = failure_of(error, self._bringers.cleared)
            if isinstance(error, TickwrightError):
                return await self._fail(held, f"{text} ({code})", final=isinstance(error, Rejected))
            _log.warning("reports.listener_raised", key=claim.key, error=text)
            return await self._fail(held, text)
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _within(self, held: HeldPart, path: Path) -> PartFacts:
        timeout_s = held.claim.listener.timeout.total_seconds()
        within = asyncio.timeout(timeout_s)
        with traces.attempting("report-parts", None, _facts_of(held.claim)):
            try:
                async with within:
                    with held.calling(timeout_s):
                        return await self._bringers.bring(held.claim, path, held.progress)
            except TimeoutError:
                if within.expired():
                    raise Unavailable("listener_timeout", f"it took longer than {timeout_s:g} s") from None
                raise

    async def _finish(self, held: HeldPart, kept: Kept) -> str:
        """Write what was brought. An answer that was lost may have been a yes: then nothing is thrown away."""
        asked = 0

        async def write() -> bool:
            nonlocal asked
            asked += 1
            return await self._parts.finish(held.claim, held.owner, kept)

        if await write_surely(self._session, held, write):
            return "done"
        if asked == 1:
            await self._places.forget(kept)
        return "late"

    async def _fail(self, held: HeldPart, error: str, *, final: bool = False) -> str:
        claim = held.claim
        final = final or claim.attempt >= claim.listener.attempts
        wait_s = min(RETRY_FACTOR ** (claim.attempt - 1), RETRY_CAP_S)
        again = None if final else timedelta(seconds=wait_s)
        if not await write_surely(self._session, held, lambda: self._parts.fail(claim, held.owner, error, again=again)):
            return "late"
        return "failed" if final else "retried"


def _facts_of(claim: Claim) -> dict[str, str | int]:
    return {
        "tickwright.report_id": claim.key.report_id,
        "tickwright.listener": claim.key.listener,
        "tickwright.attempt": claim.attempt,
    }
