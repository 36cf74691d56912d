"""Tasks of entities in other languages: a module with the target ``remote:POOL`` is run by remote workers.

The message, the run's claim, the permit of its partner and the retries stay with the consumer. The party is sent as it
is in the message: its secrets stay references, because a secret is resolved only for hosts of its own process.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tickwright.capabilities.fanout.handlers import EntityTask, Handler
from tickwright.engine.remote.calls import CallEnd, CallRequest, RemoteCalls, pool_of
from tickwright.partners.outcomes import Failed, Throttled
from tickwright.ports.fanout import TIMED_OUT

KIND: Final = "task"


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """The function of a module: hands its tasks over to the remote workers of a pool.

    Attributes:
        own_timeout: It ends in time by itself: a task's timeout begins when a worker claims it.
    """

    calls: RemoteCalls
    pool: str
    own_timeout: bool = True

    async def __call__(self, task: EntityTask) -> Any:
        """Return what the remote worker returns, or its failure as a value."""
        payload = {
            "task_id": task.id,
            "entity_code": task.entity_code,
            "task_type": task.task_type,
            "party": task.party,
            "last_executed_at": _instant(task.last_executed_at),
            "window_at": _instant(task.window_at),
            "drop_dead_at": _instant(task.drop_dead_at),
            "config_version": task.config_version,
            "run_fence": task.fence,
        }
        text = json.dumps(payload, ensure_ascii=False)
        return result_of(await self.calls.call(CallRequest(KIND, self.pool, task.task_type, text, task.timeout)))


class RemoteTasks:
    """The modules that remote workers run for this process."""

    def __init__(self, calls: RemoteCalls) -> None:
        self._calls = calls

    def of(self, module: str, target: str) -> Handler | None:
        """Return what runs a module's tasks; ``None`` without a live worker of its target."""
        pool = pool_of(target)
        return RemoteTask(self._calls, pool) if pool and self._calls.serves(KIND, target, module) else None


def result_of(end: CallEnd) -> Any:
    """Return the result of a task that a remote worker has run. Pure."""
    match end.outcome:
        case "complete":
            return end.result
        case "throttled":
            return Throttled(end.wait)
        case "fail":
            return Failed(f"{end.code}: {end.message}")
        case "timeout":
            return Failed(TIMED_OUT)
        case "lost":
            return Failed("lost: the remote worker was lost while it ran the task")
        case _:  # snoozed, or no worker has answered
            return end.postponed


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
