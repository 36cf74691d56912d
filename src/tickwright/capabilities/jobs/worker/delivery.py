"""Jobs whose target is somewhere else: HTTP callback, WebSocket push, RabbitMQ or Kafka publish.

A job row is its own outbox row, so the worker delivers it itself, through the broker port. The
message id is the job's on every attempt; the fence tells a receiver which attempt is the newest.
The id is the key, too: the attempts of a job are in one partition of a Kafka topic, in their order.
"""

from collections.abc import Mapping
from datetime import timedelta

from tickwright.capabilities.jobs.model import Completed, Ending, Errored, Job, TaskType
from tickwright.domain import traceparent
from tickwright.domain.retries import within_an_hour
from tickwright.observe import traces
from tickwright.ports.broker import Accepted, Broker, Message, Outcome, Refused

Senders = Mapping[str, Broker]


class Delivery:
    """The call of a task type with an outside target."""

    def __init__(self, kind: TaskType, broker: Broker) -> None:
        self._kind = kind
        self._broker = broker

    async def __call__(self, job: Job) -> Ending:
        """Send one attempt and say what it ended as."""
        return ending_of(await self._broker.publish(self._message(job)), self._kind)

    def _message(self, job: Job) -> Message:
        headers = {
            "tickwright-task-type": job.type,
            "tickwright-attempt": str(job.attempt),
            "tickwright-fence": str(job.fence),
            "tickwright-execute-at": job.execute_at.isoformat().replace("+00:00", "Z"),
        }
        if (here := traces.current()) is not None:
            headers[traceparent.NAME] = here
        message_id = f"job_{job.id}"
        return Message(
            id=message_id,
            key=message_id,
            destination=self._kind.target,
            body=job.payload_json.encode(),
            headers=headers,
            timeout=timedelta(seconds=job.deadline_s or self._kind.timeout.total_seconds()),
            signing_secrets=self._kind.secrets,
        )


def ending_of(outcome: Outcome, kind: TaskType) -> Ending:
    """Return what an attempt ended as, by the type's policy. Pure."""
    if isinstance(outcome, Accepted):
        return Completed()
    text = f"{outcome.code}: {outcome.reason}"
    if isinstance(outcome, Refused):
        final = outcome.final or outcome.status in kind.final_statuses
        wait = within_an_hour(outcome.retry_after)
        return Errored(outcome.code, text, final=final, gone=outcome.gone, retry_after=wait)
    return Errored(outcome.code, text)
