"""What a claim of a remote worker asks for, and what it finds."""

from dataclasses import dataclass, field

from tickwright.capabilities.jobs.remote.messages import RemoteJob, RemoteJobs, RemoteWork
from tickwright.capabilities.jobs.remote.sessions import RemoteSession


@dataclass(frozen=True, slots=True)
class AskedClaim:
    """A claim: of which session, under which number, of which types and calls, and how many of them at most."""

    session: RemoteSession
    number: int
    names: tuple[str, ...]
    max: int
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class FoundJobs:
    """The result of a claim: jobs and calls, the length of the jobs' payloads, and when there may be another job."""

    jobs: list[RemoteJob] = field(default_factory=list)
    calls: list[RemoteWork] = field(default_factory=list)
    size: int = 0
    next_in_s: float | None = None

    @property
    def count(self) -> int:
        """How many jobs and calls."""
        return len(self.jobs) + len(self.calls)

    def answer(self) -> RemoteJobs:
        """Return the answer to the worker."""
        return RemoteJobs(self.jobs, drain=False, calls=self.calls)

    def note_next(self, seconds: float) -> None:
        """Note that there may be a job in ``seconds``."""
        self.next_in_s = seconds if self.next_in_s is None else min(self.next_in_s, seconds)
