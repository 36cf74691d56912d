"""Couriers by configuration only, and the choice of each partner's courier.

::

    [partners.acme.http]
    url = "https://api.acme.example/track/{external_id}"
    headers = { authorization = "Bearer ${env:ACME_TOKEN}" }
    status = "shipment.status"                  # a path into the answer; numbers are list indexes
    at = "shipment.updated_at"                  # optional: ISO 8601, or seconds since 1970
    events = "shipment.scans"                   # optional: a list
    event_at = "time"                           # paths into one of them
    event_text = "description"
    statuses = { PU = "picked_up", OK = "Delivered" }   # others stay as they are
    unknown = [404, 410]                        # HTTP statuses that mean: unknown to the partner

Answers are not trusted: the body is bounded, redirects are not followed, addresses are guarded.
"""

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import msgspec
import structlog
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from tickwright.capabilities.polling.consumer.courier import (
    EVENT_TEXT_CHARS_MAX,
    EVENTS_MAX,
    Answer,
    Courier,
    CourierRegistry,
    Poll,
    Result,
    ScanEvent,
)
from tickwright.capabilities.polling.consumer.remote_courier import KIND, RemoteCourier
from tickwright.domain.addresses import AllowList, refusal_unasked
from tickwright.domain.errors import Rejected
from tickwright.domain.field_readers import Reader, bad, read_fields
from tickwright.domain.retries import answered_at
from tickwright.domain.secrets import MASK, Secrets, destination_of, resolve_references
from tickwright.domain.targets import WebTarget, parse_target
from tickwright.engine.remote.calls import RemoteCalls, pool_of
from tickwright.observe.logs import know_secret
from tickwright.outbound import GuardedSessions, blocked, outcome_of
from tickwright.partners.outcomes import Answered, Failed
from tickwright.partners.outcomes import outcome_of as outcome_of_status
from tickwright.partners.settings import PartnerSettings
from tickwright.plugin import Settings
from tickwright.ports.ids import monotonic, unix_seconds

PLACEHOLDER = "{external_id}"
BODY_BYTES_MAX = 256 * 1024
HEADERS_MAX = 32
HEADER_CHARS_MAX = 4096
STATUSES_MAX = 1000
PATH_CHARS_MAX = 200
_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_RESERVED_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "expect", "cookie"}
)


@dataclass(frozen=True, slots=True)
class HttpSchema:
    """The fields of the table; see the module's docstring."""

    url: str
    headers: Mapping[str, str]
    status: str
    at: str | None = None
    events: str | None = None
    event_at: str = "at"
    event_text: str = "text"
    statuses: Mapping[str, str] | None = None
    unknown: frozenset[int] = frozenset({404, 410})


def read_http(table: Any, problems: list[str], *, where: str, secrets: Secrets) -> HttpSchema | None:
    """Return the schema that ``table`` defines, with secrets; ``None`` with a line in ``problems`` per mistake."""
    before = len(problems)
    values = read_fields(table, _readers(secrets), problems, where=where)
    problems.extend(
        f"{where}.{name}: missing; {remedy}"
        for name, remedy in (
            ("url", f"such as https://api.example/track/{PLACEHOLDER}"),
            ("status", "a path into the answer"),
        )
        if name not in table
    )
    if len(problems) > before:
        return None
    return HttpSchema(**{"headers": {}, **values})


def _readers(secrets: Secrets) -> Mapping[str, Reader]:
    return {
        "url": _url,
        "headers": lambda value: _headers(value, secrets),
        "status": _path,
        "at": _path,
        "events": _path,
        "event_at": _path,
        "event_text": _path,
        "statuses": _statuses,
        "unknown": _unknown,
    }


def _url(value: Any) -> str:
    if not isinstance(value, str) or value.count(PLACEHOLDER) != 1:
        raise bad(f"write a URL with {PLACEHOLDER} in it once")
    head, _, _ = value.partition(PLACEHOLDER)
    if head.count("/") < 3:
        raise bad(f"{PLACEHOLDER} belongs in the path or the query, not in the host")
    target = parse_target(value.replace(PLACEHOLDER, "x"))
    if not isinstance(target, WebTarget) or target.scheme not in {"http", "https"}:
        raise bad("write a URL with https:// (or an allowed http://)")
    return value


def _headers(value: Any, secrets: Secrets) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > HEADERS_MAX:
        raise bad(f"write a table of at most {HEADERS_MAX} headers")
    return {_header_name(name): _header_value(text, secrets) for name, text in value.items()}


def _header_name(name: str) -> str:
    lower = name.lower()
    if not _HEADER_NAME.fullmatch(lower) or lower in _RESERVED_HEADERS:
        raise bad(f"the header {name[:80]!r} cannot be set")
    return lower


def _header_value(text: Any, secrets: Secrets) -> str:
    if not isinstance(text, str):
        raise bad("a header is a text; secrets are written ${env:NAME}")
    if text == MASK:
        raise bad(f"{MASK} replaces a hidden value; write the value again, as ${{env:NAME}}")
    try:
        whole = resolve_references(text, secrets)
    except Rejected as error:
        raise bad(error.message) from None
    if len(whole) > HEADER_CHARS_MAX or not _HEADER_VALUE.fullmatch(whole):
        raise bad(f"a header has at most {HEADER_CHARS_MAX} printable ASCII characters")
    return str(whole)


def _path(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= PATH_CHARS_MAX:
        raise bad("write a path such as shipment.status")
    return value


def _statuses(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or len(value) > STATUSES_MAX:
        raise bad(f"write a table of at most {STATUSES_MAX} statuses")
    if not all(isinstance(ours, str) and 0 < len(ours) <= 100 for ours in value.values()):
        raise bad("a status has 1 to 100 characters")
    return dict(value)


def _unknown(value: Any) -> frozenset[int]:
    is_list = isinstance(value, list | tuple)
    if not is_list or not all(isinstance(status, int) and 400 <= status <= 499 for status in value):
        raise bad("write a list of HTTP statuses from 400 to 499")
    return frozenset(value)


def answer_of(body: bytes, schema: HttpSchema) -> Answer | Failed:
    """Return the answer in a body. Pure.

    A body that is too large, is not JSON or has no status at its path is a failed call: the partner does not match the
    configuration.
    """
    if len(body) > BODY_BYTES_MAX:
        return Failed(f"the answer is larger than {BODY_BYTES_MAX} bytes")
    try:
        document = msgspec.json.decode(body)
        status = value_at(document, schema.status)
        if not isinstance(status, str | int) or isinstance(status, bool):
            return Failed(f"the answer has no status at {schema.status}")
        text = (schema.statuses or {}).get(str(status), str(status))
        at = _instant(value_at(document, schema.at)) if schema.at else None
        return Answer(text, at, _events(document, schema))
    except (msgspec.DecodeError, ValueError, OverflowError, OSError, RecursionError, Rejected) as error:
        why = error.message if isinstance(error, Rejected) else type(error).__name__  # its text would quote the answer
        return Failed(f"the answer cannot be read: {why}")


def _events(document: Any, schema: HttpSchema) -> tuple[ScanEvent, ...]:
    found = value_at(document, schema.events) if schema.events else None
    if not isinstance(found, list):
        return ()
    events = []
    for event in found:
        at = _instant(value_at(event, schema.event_at))
        if at is not None:
            text = str(value_at(event, schema.event_text) or "").replace("\0", "")
            events.append(ScanEvent(at, text[:EVENT_TEXT_CHARS_MAX]))
    return tuple(sorted(events, key=attrgetter("at"))[-EVENTS_MAX:])


def value_at(document: Any, path: str) -> Any:
    """Return the value at a dotted path; ``None`` without one."""
    for name in path.split("."):
        if isinstance(document, Mapping):
            document = document.get(name)
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return None
    return document


def _instant(value: Any) -> datetime | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    at = datetime.fromisoformat(str(value))
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


DOTS = frozenset({"", ".", ".."})


class HttpCourier:
    """Calls one partner by ``GET``.

    Args:
        allow: Networks that may be reached besides public addresses.
        connections_max: To this partner; each partner has connections of its own, so a slow one blocks no other.

    Raises:
        Rejected: ``invalid_target``: not HTTP; ``ssrf_blocked``: an address that must not be reached. Permanent.
    """

    def __init__(self, schema: HttpSchema, *, allow: AllowList, connections_max: int) -> None:
        self._schema = schema
        self._headers = {"user-agent": "Tickwright", "accept": "application/json", "accept-encoding": "identity"}
        self._headers.update(schema.headers)
        self._tls = _checked_target(schema.url, allow).tls
        self._head, _, self._tail = schema.url.partition(PLACEHOLDER)
        self._sessions = GuardedSessions(allow=allow, connections_max=2 * connections_max)

    async def __call__(self, poll: Poll) -> Result:
        """Return what the partner answers; never raises for a failed call."""
        if poll.external_id in DOTS:  # servers read these as folders above the template's
            return Answer(None)
        generation = self._sessions.acquire(tls=self._tls)
        try:
            return await self._get(generation.session, poll)
        except (TimeoutError, aiohttp.ClientError, HttpProcessingError, OSError) as error:
            return Failed(outcome_of(error).reason)
        finally:
            self._sessions.release(generation)

    async def _get(self, session: aiohttp.ClientSession, poll: Poll) -> Result:
        url = URL(f"{self._head}{quote(poll.external_id, safe='')}{self._tail}", encoded=True)
        total_s = poll.timeout.total_seconds()
        timeout = aiohttp.ClientTimeout(total=total_s, ceil_threshold=math.inf)
        response = await session.get(url, headers=self._headers, allow_redirects=False, timeout=timeout)
        try:
            now_s = answered_at(response.headers.get("date"), now_unix_s=unix_seconds())
            outcome = outcome_of_status(response.status, response.headers.get("retry-after"), now_unix_s=now_s)
            if not isinstance(outcome, Answered):
                return outcome
            if response.status in self._schema.unknown:
                return Answer(None)
            if response.status >= 300:
                return Failed(f"HTTP {response.status}")
            body = await _body(response)
        finally:
            response.release()
        return answer_of(body, self._schema)

    async def aclose(self) -> None:
        """Close its connections. Twice is harmless."""
        await self._sessions.aclose()


def _checked_target(url: str, allow: AllowList) -> WebTarget:
    target = parse_target(url.replace(PLACEHOLDER, "x"))
    if not isinstance(target, WebTarget):
        raise Rejected("invalid_target", "A partner is called by https:// (or an allowed http://).")
    reason = refusal_unasked(target.literal, target.port, tls=target.tls, allow=allow)
    if reason is not None:
        raise Rejected("ssrf_blocked", blocked(reason).reason, reason=reason)
    return target


async def _body(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for chunk in response.content.iter_any():
        parts.append(chunk)
        size += len(chunk)
        if size > BODY_BYTES_MAX:
            break
    return b"".join(parts)


CONNECTIONS_MAX = 256
SETTINGS_MAX_AGE_S = 10.0
_log = structlog.get_logger("tickwright.polling")


class _Made(NamedTuple):
    """A partner's HTTP courier, and the settings that it was made of."""

    table: Mapping[str, Any]
    schema: HttpSchema | None
    problems: list[str]
    courier: HttpCourier | None
    read_s: float


class Couriers:
    """The courier of each partner: remote workers of its target, the program's function, or its HTTP settings."""

    def __init__(self, settings: Settings, registry: CourierRegistry, remote: RemoteCalls | None = None) -> None:
        self._settings, self._registry, self._remote = settings, registry, remote
        self._made: dict[str, _Made] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, name: str, settings: PartnerSettings) -> Courier | None:
        """Return a partner's courier; ``None`` without one in this process, or without a live remote worker."""
        if settings.target is not None:
            return self._remote_courier(name, settings.target)
        if (declared := self._registry.get(name)) is not None:
            return declared.courier
        if settings.http is None:
            return None
        made = self._made.get(name)
        if made is None or made.table != settings.http or monotonic() - made.read_s >= SETTINGS_MAX_AGE_S:
            made = self._made[name] = self._make(name, settings.http, made)
        return made.courier

    def _remote_courier(self, name: str, target: str) -> Courier | None:
        remote, pool = self._remote, pool_of(target)
        if remote is None or pool is None or not remote.serves(KIND, target, name):
            return None
        return RemoteCourier(remote, pool, name)

    def _make(self, name: str, table: Mapping[str, Any], before: _Made | None) -> _Made:
        """Read the settings with their secrets again; a secret or its hosts may change at any time."""

        def find(secret: str) -> str | None:
            to = destination_of(str(table.get("url")).replace(PLACEHOLDER, "x"))
            found = self._settings.secrets.bound_to((to,))(secret)
            know_secret(found or "")
            return found

        problems: list[str] = []
        read = read_http(table, problems, where=f"partners.{name}.http", secrets=find)
        if before is not None and (before.schema, before.problems) == (read, problems):
            return before._replace(table=table, read_s=monotonic())
        if before is not None and before.courier is not None:
            task = asyncio.get_running_loop().create_task(before.courier.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        courier = None
        if read is not None:
            try:
                connections_max = max(CONNECTIONS_MAX, self._settings.concurrency)
                courier = HttpCourier(read, allow=self._settings.targets, connections_max=connections_max)
            except Rejected as error:
                problems = [error.message]
        if courier is None:
            _log.error("partner.not_callable", name=name, problems=problems)
        return _Made(table, read, problems if read is None else [], courier, monotonic())

    async def aclose(self) -> None:
        """Close every connection."""
        for made in self._made.values():
            if made.courier is not None:
                await made.courier.aclose()
        if self._closing:
            await asyncio.wait(self._closing)
