"""Sources of a process's metrics for ``observe.metrics``, including readings of the database.

The queries are those of the overview (:mod:`operations.overview.reads`), each with bounded counts. They run only for a
scrape, at most once every two seconds. If the database does not answer within a second, the page shows the last values
and ``tickwright_readings_ok 0``.
"""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from tickwright.capabilities.operations.overview.reads import (
    ANSWER_S,
    read_alerts,
    read_executions,
    read_freshness,
    read_job_gauges,
    read_poll_lags,
    read_standing,
)
from tickwright.engine.outbox.relay_rules import scheme_of
from tickwright.engine.outbox.table import lane_heads
from tickwright.observe.metrics import Sample, Source
from tickwright.ports.ids import monotonic
from tickwright.ports.session import Session
from tickwright.process.supervisor import ServiceState
from tickwright.store.pool import UNAVAILABLE, Connection, DiskFull, Pool

REMEMBER_S = 2.0
SCHEMES = frozenset({"http", "https", "ws", "wss", "amqp", "kafka", "pg", "python"})

_log = structlog.get_logger("tickwright.metrics")


class DatabaseReadings:
    """Gauges that need the database; call ``refresh`` before a page, then read them as a source."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._samples: list[Sample] = []
        self._fresh = False
        self._asked_s = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    def __call__(self) -> Sequence[Sample]:
        """Return the last values."""
        full = Sample("tickwright_database_full", float(DiskFull.is_recent()))
        return [*self._samples, Sample("tickwright_readings_ok", float(self._fresh)), full]

    async def refresh(self) -> None:
        """Query the database, unless that is recent or in progress; returns within about a second."""
        if monotonic() - self._asked_s < REMEMBER_S:
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        done, _ = await asyncio.wait({self._asking}, timeout=ANSWER_S)  # a hanging connection must not block the page
        if not done:
            self._fresh = False

    async def _ask(self) -> None:
        try:
            async with self._pool.acquire() as connection, connection.transaction():
                samples = [*await _jobs(connection), *await _outbox(connection), *await _poll_lags(connection)]
                samples += [*await _freshness(connection), *await _executions(connection)]
                self._samples = [*samples, *await _alerts(connection)]
            self._fresh, self._asked_s = True, monotonic()
        except UNAVAILABLE as error:
            self._fresh = False
            _log.warning("metrics.database_unavailable", error=repr(error))
        except Exception:
            self._fresh = False
            raise


async def _jobs(connection: Connection) -> list[Sample]:
    rows = await read_job_gauges(connection)
    samples = [Sample("tickwright_jobs_partial", int(any(row["cut"] for row in rows)))]
    for row in rows:
        label = (row["task_type"],)
        samples += [
            Sample("tickwright_jobs_due", row["due"], label),
            Sample("tickwright_jobs_processing", row["processing"], label),
            Sample("tickwright_jobs_upcoming", row["upcoming"], label),
            Sample("tickwright_jobs_oldest_due_seconds", row["oldest_due_s"], label),
        ]
    return samples


async def _outbox(connection: Connection) -> list[Sample]:
    counts = await read_standing(connection)
    oldest_s: dict[str, float] = {}
    for head in await lane_heads(connection):
        scheme = scheme_of(head["destination"])
        label = scheme if scheme in SCHEMES else "other"  # users choose destinations; labels stay bounded
        oldest_s[label] = max(oldest_s.get(label, 0.0), head["age_s"])
    return [
        Sample("tickwright_dead_letters", counts["jobs"], ("job",)),
        Sample("tickwright_dead_letters", counts["outbox"], ("outbox",)),
        Sample("tickwright_outbox_waiting", counts["outbox_waiting"]),
        *(Sample("tickwright_outbox_oldest_seconds", age_s, (scheme,)) for scheme, age_s in oldest_s.items()),
    ]


async def _poll_lags(connection: Connection) -> list[Sample]:
    samples = []
    for row in await read_poll_lags(connection):
        label = (row["topic"], str(row["partition"]))
        samples += [
            Sample("tickwright_poll_lag_records", row["lag"], label),
            Sample("tickwright_poll_oldest_seconds", row["oldest_s"], label),
        ]
    return samples


async def _freshness(connection: Connection) -> list[Sample]:
    row = await read_freshness(connection)
    samples = [
        Sample("tickwright_accounts_judged", row["judged"]),
        Sample("tickwright_accounts_lagging", row["lagging"]),
    ]
    if row["share"] is not None:
        samples.append(Sample("tickwright_polls_fresh_ratio", row["share"]))
    worst = zip(row["accounts"], row["ratios"], strict=True)
    return samples + [Sample("tickwright_account_lag_ratio", ratio, (account,)) for account, ratio in worst]


async def _executions(connection: Connection) -> list[Sample]:
    now = await read_executions(connection)
    return [
        Sample("tickwright_executions_waiting", now.waiting),
        Sample("tickwright_executions_oldest_waiting_seconds", now.oldest_s),
        Sample("tickwright_executions_working", now.working),
        Sample("tickwright_executions_unreleased_actions", now.unreleased),
    ]


async def _alerts(connection: Connection) -> list[Sample]:
    counts = (await read_alerts(connection)).counts
    return [Sample("tickwright_alerts_firing", one.firing, (one.rule, one.severity)) for one in counts]


def session_source(session: Session) -> Source:
    """Return a source for a worker session."""
    return lambda: [
        Sample("tickwright_session_token", session.token),
        Sample("tickwright_session_held", float(session.holds())),
    ]


def services_source(states: Callable[[], Sequence[ServiceState]]) -> Source:
    """Return a source for the supervisor's states of its services."""

    def read() -> Sequence[Sample]:
        samples = []
        for state in states():
            samples.append(Sample("tickwright_service_restarts_total", state.restarts, (state.name,)))
            if state.tick_age_s is not None:
                samples.append(Sample("tickwright_service_tick_age_seconds", state.tick_age_s, (state.name,)))
        return samples

    return read
