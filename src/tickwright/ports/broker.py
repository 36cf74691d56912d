"""The broker port: delivers messages to one kind of destination.

A broker answers one value per message: accepted, refused or *unknown*. *Unknown* decides whether a system loses or
doubles work. The caller then sends the same message id again; a broker never turns *unknown* into another outcome.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """One outgoing message.

    Attributes:
        id: Equal on every attempt (``job_42``, ``out_17``); never contains a dot.
        destination: ``https://…``, ``wss://…``, ``amqp:EXCHANGE/ROUTING_KEY``, ``kafka:TOPIC``, ``pg:TOPIC``.
        body: The bytes that are sent and, where the destination signs, signed.
        key: Ordering key, for destinations that have one.
        headers: Sent unchanged; names in lower case.
        timeout: Of the whole attempt: resolve, connect, send and wait for the answer.
        signing_secrets: ``whsec_…`` secrets, newest first; each one signs (rotation).
    """

    id: str
    destination: str
    body: bytes
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    timeout: timedelta = timedelta(seconds=30)
    signing_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """The receiver has the message, durably where it promises that."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The receiver, or a rule of ours, refused the message: certainly nothing was accepted.

    Attributes:
        code: Stable, ``snake_case``: ``http_503``, ``ssrf_blocked``, ``unroutable``, ``tls_expired``.
        reason: For operators; at most 1,000 characters, printable.
        final: A retry cannot help (``ssrf_blocked``, a malformed destination).
        gone: The endpoint reported that it is permanently gone (HTTP 410).
        retry_after: Wait that the receiver asked for, already capped at one hour.
    """

    code: str
    reason: str
    final: bool = False
    gone: bool = False
    status: int | None = None
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """It is unknown whether the message was accepted: a timeout, a reset, silence. Send the same id again."""

    code: str
    reason: str


Outcome = Accepted | Refused | Unknown


class Broker(Protocol):
    """Delivers messages. Safe for many concurrent calls from one event loop."""

    @property
    def schemes(self) -> frozenset[str]:
        """The destination schemes of this broker, such as ``{"http", "https"}``."""

    def check(self, destination: str) -> None:
        """Raise ``Rejected`` if ``destination`` can never be delivered to. No I/O."""

    async def publish(self, message: Message) -> Outcome:
        """Send one message; raises for no failure of the receiver or the network."""

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Send several; one outcome per message, in order. Some brokers keep the order on the wire."""

    async def ready(self) -> bool:
        """Return whether a publish may succeed now; cheap, at most a second."""

    async def aclose(self) -> None:
        """Release connections. A second call has no effect."""


class Brokers(dict[str, Broker]):
    """The brokers of one process, by scheme. Messages to a scheme without a broker wait."""


class TargetCheck(Protocol):
    """Refuses, at configuration, a target that is reserved or can never be delivered to. No I/O."""

    def __call__(self, target: str) -> None:
        """Raise ``Rejected``: ``invalid_target``, ``destination_reserved``, ``address_not_allowed``. Permanent."""
