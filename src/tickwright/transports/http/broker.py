"""HTTP callbacks: one POST per message, signed, bounded, never redirected.

A 2xx with a complete head is *accepted*. Any other answer, or a failure before the first byte, is *refused*. The rest
is *unknown*. Answers are not trusted. The code path per message is short, because one event loop makes thousands of
callbacks a second beside the database work.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from tickwright.domain.errors import Rejected
from tickwright.domain.retries import answered_at, parse_retry_after
from tickwright.domain.signatures import sign
from tickwright.domain.targets import WebTarget
from tickwright.engine.tasks import TaskGroup
from tickwright.outbound import GuardedBroker, check_message, excerpt, outcome_of
from tickwright.ports.alerts import ALERTS, AlertEndpoints
from tickwright.ports.broker import Accepted, Broker, Message, Outcome, Refused, Unknown
from tickwright.ports.ids import unix_seconds
from tickwright.store.pool import UNAVAILABLE

RETRY_AFTER_MAX = timedelta(hours=1)


def refusal_of(
    status: int, retry_after: str | None, body: bytes, *, path: str = "", now_unix_s: int
) -> Refused | Unknown:
    """Return the outcome of a status from 100 to 999 that is not 2xx.

    ``retry_after`` is not trusted. ``body`` is the beginning of the answer, for operators. ``path`` can hold a
    credential, so it is removed from the text. ``Retry-After`` dates are compared with ``now_unix_s``.
    """
    if status < 200:
        return Unknown("bad_response", f"The answer switched protocols (HTTP {status}).")
    if 300 <= status < 400:
        return Refused("http_redirect", f"HTTP {status}: redirects are never followed.", status=status)
    text = excerpt(body, path)
    return Refused(
        f"http_{status}",
        f"HTTP {status}: {text}" if text else f"HTTP {status}",
        gone=status == 410,
        status=status,
        retry_after=parse_retry_after(retry_after, now_unix_s=now_unix_s, most=RETRY_AFTER_MAX),
    )


BODY_READ_BYTES_MAX = 16 * 1024
BODY_READ_S_MAX = 1.0
CONNECT_SHARE = 0.9
USER_AGENT = "Tickwright"

_ACCEPTED = Accepted()
_CLOSED = Refused("broker_closed", "This broker was closed; nothing was sent.")


class HttpBroker(GuardedBroker):
    """Sends callbacks.

    Invariants:
        HTTP-1: a blocked address is never connected to; the outcome is ``ssrf_blocked`` and final.
        HTTP-2: ``Refused`` without a status means that no byte of the message was sent.
        HTTP-3: an attempt ends within ``message.timeout``, whatever the receiver does.
        HTTP-4: the signed bytes are the sent bytes.
    """

    schemes = frozenset({"http", "https"})
    other_target = "A callback goes to https:// (or an allowed http://)."

    async def publish(self, message: Message) -> Outcome:
        """Send one callback and return its outcome. A failure of the receiver raises nothing."""
        if self._sessions.closed:
            return _CLOSED
        try:
            target = self._target(message.destination)
            headers = _headers(message)
        except Rejected as error:
            return Refused(error.code, error.message, final=True)
        counted = self._sessions.acquire(tls=target.tls)
        try:
            return await _post(counted.session, target, message, headers)
        except (aiohttp.ClientError, HttpProcessingError, OSError) as error:
            return outcome_of(error)
        finally:
            self._sessions.release(counted)

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Send several, as many in parallel as there are connections; outcomes in order."""
        outcomes: list[Outcome] = [_CLOSED] * len(messages)
        numbered = iter(enumerate(messages))

        async def sender() -> None:
            for index, message in numbered:
                outcomes[index] = await self.publish(message)

        async with TaskGroup() as group:
            for _ in range(min(len(messages), self._connections_max)):
                group.create_task(sender())
        return outcomes


def _headers(message: Message) -> dict[str, str]:
    check_message(message)
    now = unix_seconds()
    headers = {
        "user-agent": USER_AGENT,
        "accept-encoding": "identity",
        "content-type": message.content_type,
        "webhook-id": message.id,
        "webhook-timestamp": str(now),
        **message.headers,
    }
    if message.signing_secrets:
        headers["webhook-signature"] = sign(message.id, now, message.body, message.signing_secrets)
    return headers


@lru_cache(maxsize=4096)
def _url(text: str) -> URL:
    return URL(text, encoded=True)


@lru_cache(maxsize=1024)
def _timeout(total: timedelta) -> aiohttp.ClientTimeout:
    total_s = total.total_seconds()
    return aiohttp.ClientTimeout(total=total_s, connect=total_s * CONNECT_SHARE, ceil_threshold=math.inf)


async def _post(
    session: aiohttp.ClientSession, target: WebTarget, message: Message, headers: dict[str, str]
) -> Outcome:
    response = await session.post(
        _url(target.url),
        data=message.body,
        headers=headers,
        allow_redirects=False,
        timeout=_timeout(message.timeout),
    )
    try:
        if response.connection is None and response.status // 100 == 2:
            return _ACCEPTED
        body = await _beginning(response)
    finally:
        response.release()
    if 200 <= response.status < 300:
        return _ACCEPTED
    now_s = answered_at(response.headers.get("date"), now_unix_s=unix_seconds())
    path = str(response.url.raw_path_qs)
    return refusal_of(response.status, response.headers.get("retry-after"), body, path=path, now_unix_s=now_s)


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """Read the first bytes of a body and ignore failures. A short body read to its end frees its connection."""
    body = b""
    try:
        async with asyncio.timeout(BODY_READ_S_MAX):
            while len(body) < BODY_READ_BYTES_MAX:
                chunk = await response.content.read(BODY_READ_BYTES_MAX - len(body))
                if not chunk:
                    break
                body += chunk
    except (aiohttp.ClientError, HttpProcessingError, OSError):
        pass
    return body


# Destination ``alert:NAME``: a signed callback to a receiver of alerts.
#
# The outbox row names the receiver; the URL and the secrets are read when the message is sent. So rows contain neither,
# and waiting messages use a rotated secret and the receiver's current URL. Messages to ``https://…`` stay unsigned, so
# that an address that a user chooses gets no receiver's signature.


class ReceiverBroker:
    """Sends to receivers by name, through the broker of their URLs.

    Args:
        callbacks: Broker for ``http`` and ``https``; the caller closes it.
        receivers: Where their URLs and secrets are.

    Invariants:
        RCV-1: a message is sent signed, or not at all.
        RCV-2: an address that is not allowed is never connected to (HTTP-1 of ``callbacks``).
    """

    schemes = frozenset({ALERTS})

    def __init__(self, callbacks: Broker, receivers: AlertEndpoints) -> None:
        self._callbacks, self._receivers = callbacks, receivers

    def check(self, destination: str) -> None:
        """Raise ``Rejected`` for a destination that cannot name a receiver."""
        scheme, _, name = destination.partition(":")
        if scheme != ALERTS or not name:
            raise Rejected("invalid_target", "An alert goes to alert:NAME, a receiver's name.")

    async def publish(self, message: Message) -> Outcome:
        """Send one message and return its outcome."""
        return (await self.publish_many([message]))[0]

    async def publish_many(self, messages: Sequence[Message]) -> list[Outcome]:
        """Send several; outcomes in order. A missing receiver is a final refusal."""
        names = {_name(message) for message in messages}
        try:
            found = await self._receivers.endpoints(names)
        except UNAVAILABLE as error:
            return [Refused("receivers_unreadable", repr(error)[:200])] * len(messages)
        outcomes: list[Outcome] = [
            Refused("receiver_not_found", "There is no such receiver of alerts.", final=True) for _ in messages
        ]
        addressed: dict[int, Message] = {}
        for index, message in enumerate(messages):
            if (endpoint := found.get(_name(message))) is None:
                continue
            if endpoint.secrets:
                addressed[index] = replace(message, destination=endpoint.url, signing_secrets=endpoint.secrets)
            else:
                outcomes[index] = Refused("receiver_without_secret", "It has no signing secret; rotate it.")
        sent = await self._callbacks.publish_many([*addressed.values()])
        for index, outcome in zip(addressed, sent, strict=True):
            outcomes[index] = outcome
        return outcomes

    async def ready(self) -> bool:
        """Whether the broker for callbacks is ready."""
        return await self._callbacks.ready()

    async def aclose(self) -> None:
        """Do nothing: the caller closes ``callbacks``."""


def _name(message: Message) -> str:
    return message.destination.partition(":")[2]
