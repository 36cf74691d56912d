"""One claimed part: fetched into a file, stored, and written into the ledger under its claim.

::

    rows ──▶ NDJSON file ──stored──▶ marked ──finish──▶ done
      │ the listener raises, or takes too long: due again after 1, 5, 25 s …, or failed for good

A part is served by ``function:<name>``, a function of this process's program, or by ``source:<name>``, a query on one
of its sources. So a new report type needs nothing new in a process that has its source. An error of a listener fails
its part alone. While the database is unavailable, the write of a result is repeated for as long as the claim lives.
"""

import asyncio
from collections.abc import AsyncIterable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog

from tickwright.capabilities.reports.handlers import DeclaredListener, ListenerRegistry, ReportRequest
from tickwright.capabilities.reports.parts.spool import write_part
from tickwright.capabilities.reports.parts.storage import PartStorage
from tickwright.capabilities.reports.parts.store import Claim, PartsStore, StoredPart
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.functions import failure_text
from tickwright.engine.claimed_work import Held, write_surely
from tickwright.engine.tasks import ends_task, take_cancels_back
from tickwright.observe import traces
from tickwright.observe.logs import redact_text
from tickwright.ports.ids import monotonic, random_token
from tickwright.ports.reports import PartFacts, Rows
from tickwright.ports.service import NO_PROBE, Probe
from tickwright.ports.session import Session
from tickwright.sources.named import Sources

STUCK_AFTER_S = 2.0
_log = structlog.get_logger("tickwright.reports")


@dataclass(slots=True, eq=False)
class RunningPart(Held[Claim]):
    """One part under way.

    Attributes:
        rows: Fetched so far.
        ends_s: When its listener has to return, by the monotonic clock; ``None`` while none runs.
        is_logged: Whether the log names it as stuck.
    """

    rows: int = 0
    ends_s: float | None = None
    is_logged: bool = False

    def cancel(self) -> None:
        """Cancel its task now."""
        if self.ends_s is not None:
            self.ends_s = min(self.ends_s, monotonic())
        Held.cancel(self)  # super() does not work in a dataclass with slots

    @contextmanager
    def calling(self, allowed_s: float) -> Iterator[None]:
        """Mark the block as the call of its listener, which may take ``allowed_s``."""
        self.ends_s = monotonic() + allowed_s
        try:
            yield
        finally:
            self.ends_s = None

    def is_stuck(self) -> bool:
        """Whether its listener is still running two seconds after ``ends_s``; logged once.

        A function may ignore its cancellation. Then it keeps its slot until a restart.
        """
        if self.ends_s is None or monotonic() <= self.ends_s + STUCK_AFTER_S:
            return False
        if not self.is_logged:
            _log.warning("reports.part_stuck", key=self.claim.key, served_by=self.claim.served_by)
        self.is_logged = True
        return True

    def progress(self, rows: int) -> None:
        """Set the number of fetched rows."""
        self.rows = rows


PART_BYTES_MAX = 16 * 1024**3


class PartFetcher:
    """Fetches parts of at most ``bytes_max`` into files, by functions of the program or sources of the TOML file."""

    def __init__(self, functions: ListenerRegistry, sources: Sources, *, bytes_max: int = PART_BYTES_MAX) -> None:
        self._functions, self._sources, self._bytes_max = functions, sources, bytes_max

    def names(self) -> list[str]:
        """Return what this process serves, by the ledger's names."""
        return [*self.limits()]

    def limits(self) -> dict[str, int | None]:
        """Return the names, each with its maximum of parts at once, or ``None`` if unlimited."""
        functions: dict[str, int | None] = {f"function:{one.name}": None for one in self._functions.all()}
        return functions | {f"source:{name}": self._sources.connections_max(name) for name in self._sources.names()}

    def mask(self, text: str) -> str:
        """Return a listener's error text with passwords in addresses and secrets of sources masked."""
        return redact_text(self._sources.mask(text))

    async def fetch(self, claim: Claim, path: Path, progress: Callable[[int], None]) -> PartFacts:
        """Write the rows of a part into a new file.

        Raises:
            Rejected: The function, the query or its rows are invalid. Permanent.
            Unavailable: The source does not answer, or the disk is full. Retry.
            Exception: An error of a function. Retry.
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


RETRY_FACTOR = 5.0
RETRY_CAP_S = 300.0


class PartRuns:
    """Runs claimed parts, any number at a time; removes their files from ``folder``."""

    def __init__(
        self,
        parts: PartsStore,
        storage: PartStorage,
        session: Session,
        fetcher: PartFetcher,
        folder: Path,
        *,
        probe: Probe = NO_PROBE,
    ) -> None:
        self._parts, self._storage, self._session = parts, storage, session
        self._fetcher, self._folder, self._probe = fetcher, folder, probe

    async def run(self, part: RunningPart) -> str:
        """Fetch the part and write its result; return the outcome: ``done``, ``retried``, ``failed`` or ``late``.

        Raises:
            CancelledError: It was cancelled; nothing of it is written.
        """
        claim = part.claim
        if claim.attempt > claim.listener.attempts:
            return await self._fail(part, f"the process that ran it was lost {claim.attempt - 1} times", final=True)
        path = self._folder / f"{claim.key.report_id}-{claim.key.listener}-{random_token(8)}.ndjson"
        try:
            facts = await self._fetch(part, path)
            await self._probe.reached("reports.part_fetched", key=claim.key, facts=facts)
            stored = await self._storage.put(claim.key, path, facts, plan=claim.plan)
            return "late" if stored is None else await self._finish(part, stored)
        except BaseException as error:  # a function's error fails its part, not the others and not the process
            if ends_task(error):
                raise
            await take_cancels_back()
            code, text = failure_text(error, self._fetcher.mask)
            if isinstance(error, TickwrightError):
                return await self._fail(part, f"{text} ({code})", final=isinstance(error, Rejected))
            _log.warning("reports.listener_failed", key=claim.key, error=text)
            return await self._fail(part, text)
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _fetch(self, part: RunningPart, path: Path) -> PartFacts:
        timeout_s = part.claim.listener.timeout.total_seconds()
        within = asyncio.timeout(timeout_s)
        with traces.attempting("report-parts", None, _facts_of(part.claim)):
            try:
                async with within:
                    with part.calling(timeout_s):
                        return await self._fetcher.fetch(part.claim, path, part.progress)
            except TimeoutError:
                if within.expired():
                    raise Unavailable("listener_timeout", f"it took longer than {timeout_s:g} s") from None
                raise

    async def _finish(self, part: RunningPart, stored: StoredPart) -> str:
        """Write the result. If an answer was lost, the write may have succeeded, so nothing is removed."""
        writes = 0

        async def write() -> bool:
            nonlocal writes
            writes += 1
            return await self._parts.finish(part.claim, part.owner, stored)

        if await write_surely(self._session, part, write):
            return "done"
        if writes == 1:
            await self._storage.forget(stored)
        return "late"

    async def _fail(self, part: RunningPart, error: str, *, final: bool = False) -> str:
        claim = part.claim
        final = final or claim.attempt >= claim.listener.attempts
        wait_s = min(RETRY_FACTOR ** (claim.attempt - 1), RETRY_CAP_S)
        again = None if final else timedelta(seconds=wait_s)
        if not await write_surely(self._session, part, lambda: self._parts.fail(claim, part.owner, error, again=again)):
            return "late"
        return "failed" if final else "retried"


def _facts_of(claim: Claim) -> dict[str, str | int]:
    return {
        "tickwright.report_id": claim.key.report_id,
        "tickwright.listener": claim.key.listener,
        "tickwright.attempt": claim.attempt,
    }
