"""What attempts end as becomes what is written: done, again after a wait, given up, cancelled, given back."""

from collections.abc import Awaitable, Callable

from tickwright.capabilities.jobs.model import ERROR_MESSAGE_MAX, Begin, Completed, Ending, Errored, Job, Snoozed
from tickwright.capabilities.jobs.worker.result_writer import Settler
from tickwright.domain.functions import storable
from tickwright.observe import traces
from tickwright.observe.logs import without_secrets
from tickwright.ports.ids import random_unit

INTERRUPTED = "interrupted: its worker stopped before it ended"


class Endings:
    """Judges endings for the runner, and queues what follows from them.

    Args:
        settler: Writes.
        gone: Called with a job whose endpoint is gone for good, and why; gives it back when its type waits.
        freed: Called when a place of a limited type is free again.
        begins: Says whether a last attempt may begin.
    """

    def __init__(
        self,
        settler: Settler,
        *,
        gone: Callable[[Job, str], None],
        freed: Callable[[], None],
        begins: Callable[[Job], Awaitable[Begin]],
    ) -> None:
        self._settler = settler
        self._begins = begins
        self._gone = gone
        self._freed = freed

    async def begins(self, job: Job) -> Begin:
        """Return whether a last attempt may begin."""
        return await self._begins(job)

    def completed(self, job: Job) -> None:
        """Note the common case."""
        self._ended(job, "completed")
        self._settler.add_completed(job.id, keep=job.entry.kind.keep_history)

    def ended(self, job: Job, ending: Ending) -> None:
        """Note what an attempt ended as."""
        match ending:
            case Completed(result=None):
                self.completed(job)
            case Completed(result=result):
                self._ended(job, "completed")
                self._settler.add("complete_with_result", job.id, result)
            case Snoozed(wait=wait):
                self._ended(job, "snoozed")
                self._settler.add("snooze", job.id, job.fence, wait.total_seconds())
            case Errored():
                self._errored(job, ending)

    def _errored(self, job: Job, error: Errored) -> None:
        if job.span is not None:
            traces.fail(job.span, error.code)
        outcome, text = "timed_out" if error.code == "timeout" else "failed", _kept(error.message)
        if error.gone:  # the type waits for an operator, and this attempt does not count
            self._ended(job, "gone")
            self._gone(job, text)
        elif error.final or job.attempt >= job.max_attempts:
            self._ended(job, "failed")
            self._settler.add("fail", job.id, outcome, text)
        else:
            self._ended(job, "retried")
            wait = job.entry.kind.retry.delay(job.attempt, random_unit(), error.retry_after)
            self._settler.add("retry", job.id, job.fence, wait.total_seconds(), outcome, text)

    def stopped(self, job: Job, reason: str) -> None:
        """Note an attempt that was cut short: ``cancel``, ``shutdown``, or ``lost`` (nothing is written for it)."""
        self._ended(job, reason)
        if reason == "shutdown":
            self._settler.add("release_with_error", job.id, job.fence, INTERRUPTED)
        elif reason == "cancel":
            self._settler.add("cancel_held", job.id, "cancelled while it ran")

    def unstarted(self, job: Job, reason: str) -> None:
        """Note an attempt that ends before it has started; it does not count.

        Args:
            job: The attempt.
            reason: One of ``stopped``; or ``locked``, ``timeout``, ``no_place``, ``waits`` (its type does): it is
                released, as for ``shutdown``.
        """
        if reason == "cancel":
            self._ended(job, reason)
            self._settler.add("cancel_unstarted", job.id, "cancelled before it started")
        elif reason == "lost":
            self.stopped(job, reason)
        else:
            self._ended(job, "released")
            self._settler.add("release", job.id, job.fence)

    def expired(self, job: Job) -> None:
        """Note an attempt that came too late to be started."""
        self._ended(job, "expired")
        self._settler.add("cancel_unstarted", job.id, "expired: it could not start before expires_at")

    def _ended(self, job: Job, outcome: str) -> None:
        entry = job.entry
        if job.span is not None:
            job.span.set_attribute("tickwright.outcome", outcome)
        entry.held -= 1
        entry.counts[outcome] = entry.counts.get(outcome, 0) + 1
        if entry.granted is not None:
            self._freed()


def _kept(text: str) -> str:
    """Return an error's text as its row can keep it: cleared of secrets first, so that none is cut in half."""
    clean = storable(without_secrets(text))
    return clean if len(clean) <= ERROR_MESSAGE_MAX else clean[: ERROR_MESSAGE_MAX - 1] + "…"
