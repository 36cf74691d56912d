"""How a message leaves us, whatever carries it.

A broker is one folder under ``brokers/`` and knows one kind of destination. It answers one
value per message, and there are three of them on purpose: the third, *unknown*, is the one
that decides whether a system loses or doubles work. A caller that hears *unknown* sends the
same message id again; a broker never turns *unknown* into one of the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """One message on its way out.

    Attributes:
        id: Equal on every attempt (``job_42``, ``out_17``); never contains a dot.
        destination: ``https://…``, ``wss://…``, ``amqp:EXCHANGE/ROUTING_KEY``, ``kafka:TOPIC``, ``pg:TOPIC``.
        body: The bytes that are sent and, where the destination signs, the bytes that are signed.
        key: Ordering key where the destination knows one.
        headers: Sent as they are; names in lower case.
        content_type: Of ``body``.
        timeout: Bound of the whole attempt: resolve, connect, send and wait for the answer.
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
    """The other side has it, durably where it promises so."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The other side, or a rule of ours, said no: certain that nothing was taken.

    Attributes:
        code: Stable, ``snake_case``: ``http_503``, ``ssrf_blocked``, ``unroutable``, ``tls_expired``.
        reason: For a person; at most 1,000 characters, printable.
        final: Trying again cannot help (``ssrf_blocked``, a malformed destination).
        gone: The endpoint said that it is gone for good (HTTP 410).
        status: The HTTP status, where there was one.
        retry_after: What the other side asked for, already capped at one hour.
    """

    code: str
    reason: str
    final: bool = False
    gone: bool = False
    status: int | None = None
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell whether it was taken: a timeout, a reset, silence. Send the same id again."""

    code: str
    reason: str


Outcome = Accepted | Refused | Unknown


class Broker(Protocol):
    """One way out. Safe for many concurrent calls from one event loop."""

    @property
    def schemes(self) -> frozenset[str]:
        """The destination schemes that this broker carries, such as ``{"http", "https"}``."""
        ...

    def check(self, destination: str) -> None:
        """Raise ``Rejected`` when ``destination`` can never be sent to. No I/O."""
        ...

    async def publish(self, message: Message) -> Outcome:
        """Send one message; never raises for anything the other side or the network does."""
        ...

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Send several; one outcome per message, in order. Order on the wire only where the broker keeps it."""
        ...

    async def ready(self) -> bool:
        """Whether a publish has a chance now; cheap, bounded by a second."""
        ...

    async def aclose(self) -> None:
        """Release connections. Twice is harmless."""
        ...


class Brokers(dict[str, Broker]):
    """The brokers of one process, by the scheme of their destinations. A destination without a broker waits."""


class TargetCheck(Protocol):
    """Refuses a target that can never be delivered to, or that is reserved, when it is configured. No I/O."""

    def __call__(self, target: str) -> None:
        """Raise ``Rejected``: ``invalid_target``, ``destination_reserved``, ``address_not_allowed``. Permanent."""
        ...
