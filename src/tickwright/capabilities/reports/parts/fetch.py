"""What one process can bring: functions that its program registered, and queries on sources that it has.

A part is served by ``function:<name>`` or ``source:<name>``, so a report type that an operator adds needs nothing new
in a process that has its source.
"""

from collections.abc import AsyncIterable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tickwright.capabilities.reports.handlers import DeclaredListener, ListenerRegistry, ReportRequest
from tickwright.capabilities.reports.parts.spool import write_part
from tickwright.capabilities.reports.parts.store import Claim
from tickwright.domain.errors import Unavailable
from tickwright.observe.logs import redact_text
from tickwright.ports.reports import PartFacts, Rows, Source

PART_BYTES_MAX = 16 * 1024**3


class SourcesByName(Protocol):
    """The sources of this process."""

    def names(self) -> list[str]:
        """Return what they are called."""
        ...

    def connections_max(self, name: str) -> int:
        """Return how many queries at once the source of that name takes from this process."""
        ...

    def get(self, name: str) -> Source:
        """Return the source of that name.

        Raises:
            Rejected: ``unknown_source``, or it cannot be opened as it is set up. Permanent until an operator acts.
        """
        ...

    def mask(self, text: str) -> str:
        """Return ``text`` without the secrets that sources were given."""
        ...


class Bringers:
    """Brings parts into files.

    Args:
        functions: Of this process's program.
        sources: Of its TOML file.
        bytes_max: Of one part.
    """

    def __init__(self, functions: ListenerRegistry, sources: SourcesByName, *, bytes_max: int = PART_BYTES_MAX) -> None:
        self._functions, self._sources, self._bytes_max = functions, sources, bytes_max

    def names(self) -> list[str]:
        """Return what this process serves, as the ledger calls it."""
        return [*self.limits()]

    def limits(self) -> dict[str, int | None]:
        """Return the same, and how many parts at once each can bring, where it says so."""
        functions: dict[str, int | None] = {f"function:{one.name}": None for one in self._functions.all()}
        return functions | {f"source:{name}": self._sources.connections_max(name) for name in self._sources.names()}

    def cleared(self, text: str) -> str:
        """Return what a listener said of its failure, without passwords in addresses and secrets of sources."""
        return redact_text(self._sources.mask(text))

    async def bring(self, claim: Claim, path: Path, progress: Callable[[int], None]) -> PartFacts:
        """Write the rows of a part into a new file.

        Raises:
            Rejected: The function, the query or its rows are wrong. Permanent.
            Unavailable: The source does not answer, or there is no room. Retry.
            Exception: Whatever a function raises. Retry.
        """
        listener = claim.listener
        if listener.kind == "sql":
            source = self._sources.get(listener.source or "")
            values = {**claim.conditions, **claim.feed}
            async with source.query(listener.sql or "", values, timeout=listener.timeout) as rows:
                return await self._write(rows, path, listener.columns, progress)
        function = self._functions.get(listener.name)
        if function is None:
            raise Unavailable("unknown_listener", f"no function for listener {listener.name!r} here")
        return await self._write(function.function(self._request(claim, function)), path, listener.columns, progress)

    async def _write(
        self,
        rows: Rows | AsyncIterable[Mapping[str, Any]],
        path: Path,
        declared: Mapping[str, str],
        progress: Callable[[int], None],
    ) -> PartFacts:
        return await write_part(rows, path, declared=declared, progress=progress, bytes_max=self._bytes_max)

    def _request(self, claim: Claim, function: DeclaredListener) -> ReportRequest:
        listener = claim.listener
        name = listener.source or function.source
        return ReportRequest(
            report_id=claim.key.report_id,
            epoch=claim.key.epoch,
            listener=listener.name,
            type=claim.type,
            stage=claim.stage,
            conditions=claim.conditions,
            feed=claim.feed,
            requester=claim.requester,
            attempt=claim.attempt,
            fence=claim.fence,
            deadline_at=claim.deadline_at,
            timeout=listener.timeout,
            source=None if name is None else self._sources.get(name),
        )
