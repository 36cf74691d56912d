"""Draining: a program runs its own due jobs until none is left, without a worker process.

With a clock that can be moved, which only a database of :mod:`tickwright.testing` has, a drain also goes from one due
instant to the next, so that retries, delays and schedules of days pass in milliseconds.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tickwright import __version__
from tickwright.app.declarations import Duration, as_duration
from tickwright.capabilities.jobs.handlers import HandlerRegistry
from tickwright.capabilities.jobs.model import Retry, Snooze
from tickwright.capabilities.jobs.worker.drain import DrainedJob, JobDrain
from tickwright.domain.errors import JobFailed, Rejected
from tickwright.engine.session import WorkerSession
from tickwright.process.plugins import PLUGINS

if TYPE_CHECKING:
    from tickwright.plugin.contract import Producer
    from tickwright.plugin.lifespan import Lifespan
    from tickwright.process.installation import Installation

ATTEMPTS_MAX = 10_000
NO_CLOCK = (
    "only the clock of a database of tickwright.testing can be moved; open the app with the fixture tickwright_app, "
    "or drain without 'until'"
)


class MovableClock(Protocol):
    """The clock of a test database."""

    async def advance_to(self, at: datetime) -> None:
        """Let the database's clock be at ``at``, or later where it is later already."""


class Drained(msgspec.Struct, frozen=True):
    """What a drain did.

    Attributes:
        jobs: Every attempt, in the order in which they ran.
    """

    jobs: Sequence[DrainedJob]

    @property
    def counts(self) -> Counter[str]:
        """How many attempts ended with each outcome; an outcome without attempts has 0."""
        return Counter(job.outcome for job in self.jobs)

    @property
    def results(self) -> list[Any]:
        """What the handlers of completed jobs returned, in order."""
        return [job.result for job in self.jobs if job.outcome == "completed"]

    @property
    def errors(self) -> list[DrainedJob]:
        """The attempts that failed."""
        return [job for job in self.jobs if job.outcome in {"failed", "retried"}]


async def drain(
    installation: "Installation",
    lifespan: "Lifespan",
    *,
    clock: MovableClock | None = None,
    resources: Mapping[str, Any] | None = None,
    until: datetime | Duration | None = None,
    raises: bool = True,
    attempts_max: int = ATTEMPTS_MAX,
) -> Drained:
    """Do what ``app.drain`` says, with what the app consists of."""
    if until is not None and clock is None:
        raise Rejected("no_test_clock", NO_CLOCK, field="until")
    if isinstance(until, datetime) and until.tzinfo is None:
        raise Rejected("naive_datetime", "until: give an instant with a time zone", field="until")
    producers = [one for plugin in PLUGINS for one in plugin.producers(installation.context)]
    async with _open_drain(installation, lifespan, resources) as jobs:
        end = until if until is None or isinstance(until, datetime) else await jobs.now() + _duration(until)
        return await _Drain(jobs, producers, raises=raises, attempts_max=attempts_max).run(clock, end)


def _duration(until: Duration) -> timedelta:
    read = as_duration("until", until)
    assert read is not None  # noqa: S101  it is a duration
    return read


@asynccontextmanager
async def _open_drain(
    installation: "Installation", lifespan: "Lifespan", resources: Mapping[str, Any] | None
) -> AsyncIterator[JobDrain]:
    """Open the resources, a session and the drain; given resources take the place of the program's lifespans."""
    pool, handlers = installation.pool, installation.context.registrations.of(HandlerRegistry)
    session = WorkerSession(pool, name="drain", roles=["worker"], version=__version__)
    jobs = JobDrain(pool, session, handlers, installation.context.settings.payload_keys)

    async with _filled(installation, lifespan, resources):
        await session.open()
        try:
            await jobs.open()
            try:
                yield jobs
            finally:
                await jobs.aclose()
        finally:
            await session.stop()


@asynccontextmanager
async def _filled(
    installation: "Installation", lifespan: "Lifespan", resources: Mapping[str, Any] | None
) -> AsyncIterator[None]:
    if resources is None:
        async with lifespan.opened(installation):
            yield
        return
    with lifespan.holding(resources):
        yield


class _Drain:
    """One drain, from its first job to its end."""

    def __init__(self, jobs: JobDrain, producers: "Sequence[Producer]", *, raises: bool, attempts_max: int) -> None:
        self._jobs, self._producers, self._raises, self._attempts_max = jobs, producers, raises, attempts_max
        self._ended: list[DrainedJob] = []

    async def run(self, clock: MovableClock | None, end: datetime | None) -> Drained:
        while True:
            rest_s = await self._produce()
            if await self._run_due():
                continue  # what ran may have made more
            if clock is None or end is None:
                return Drained(self._ended)
            next_at = await self._next_at(rest_s)
            if next_at is None or next_at > end:
                if await self._jobs.now() >= end:
                    return Drained(self._ended)
                next_at = end
            await clock.advance_to(next_at)

    async def _produce(self) -> float | None:
        """Make what schedules say; return the seconds until more is due."""
        rests = [await produce() for produce in self._producers]
        return min((rest for rest in rests if rest is not None), default=None)

    async def _next_at(self, rest_s: float | None) -> datetime | None:
        found = [await self._jobs.next_due()]
        if rest_s is not None:
            found.append(await self._jobs.now() + timedelta(seconds=rest_s))
        return min((at for at in found if at is not None), default=None)

    async def _run_due(self) -> bool:
        """Run jobs until none is due; return whether there was one."""
        before = len(self._ended)
        while ended := await self._jobs.run_next():
            self._ended += ended
            if self._raises:
                for job in ended:
                    _raise_error(job)
            if len(self._ended) >= self._attempts_max:
                raise self._endless()
        return len(self._ended) > before

    def _endless(self) -> Rejected:
        last = Counter(job.name for job in self._ended[-100:])
        names = ", ".join(f"{name} ({count})" for name, count in last.most_common(5))
        text = (
            f"the drain ran {self._attempts_max} attempts and jobs are still due, of the last ones: {names}; "
            "do these jobs schedule each other without end? Give a higher attempts_max if not"
        )
        return Rejected("drain_endless", text, attempts=len(self._ended))


def _raise_error(job: DrainedJob) -> None:
    """Raise what a job raised, if it was not a wish for a later attempt."""
    if job.outcome not in {"failed", "retried"} or isinstance(job.error, Retry | Snooze):
        return
    where = f"in job {job.id} ({job.name}), attempt {job.attempt}, {job.outcome}; app.drain(raises=False) reports it"
    if job.error is None:
        raise JobFailed("job_failed", f"an attempt timed out or returned a failure: {where}", job_id=job.id)
    job.error.add_note(where)
    raise job.error
