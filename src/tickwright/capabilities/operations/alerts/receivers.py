"""Receivers of alerts, as operators set them, and their signing secrets.

The alerting loop writes an outbox row to ``alert:NAME`` for every receiver with matching rules and severity. The relay
delivers it, signed, to the receiver's URL at that time. A receiver gets the changes after its creation: of an alert
that already fires, the end.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from tickwright.domain.errors import Rejected
from tickwright.domain.signatures import OVERLAP_DEFAULT, SECRET_BYTES, check_overlap, secret_of
from tickwright.domain.targets import WebTarget, parse_target
from tickwright.domain.time_texts import format_duration
from tickwright.observe.alerts import OWN_RULES, AlertRule
from tickwright.ports.alerts import AlertEndpoint
from tickwright.ports.caller import Caller
from tickwright.ports.ids import random_bytes
from tickwright.ports.views import view
from tickwright.store.audit import write_audit
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.operations.sql", "alert_receivers.sql")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")
RECEIVERS_MAX = 100


class ReceiverRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A complete receiver: a field that is left out gets its default.

    Attributes:
        url: ``https://…``, or ``http://…`` where that is allowed.
        severity_min: The lowest severity that it gets.
        rules: Only these; null is every rule.
    """

    url: Annotated[str, Meta(min_length=1, max_length=2048, examples=["https://example.org/alerts"])]
    severity_min: Literal["info", "warning", "critical"] = "info"
    rules: Annotated[list[str], Meta(min_length=1, max_length=100, examples=[["scheduler_stopped"]])] | None = None


class ReceiverView(msgspec.Struct, kw_only=True):
    """One receiver, without its secrets; ``signing_secrets`` is the number of secrets in use."""

    name: str
    url: str
    severity_min: str
    rules: list[str] | None
    signing_secrets: int
    created_at: datetime
    updated_at: datetime


class StoredReceiver(msgspec.Struct):
    """The stored receiver; ``secret`` only when this request made it, shown only in this response."""

    receiver: ReceiverView
    created: bool
    secret: str | None = None


class ReceiverSecret(msgspec.Struct):
    """A new signing secret, shown only in this response; the old ones stay in use for ``overlap``."""

    receiver: str
    secret: str
    overlap: str


class AlertReceivers:
    """The rows of ``tickwright.alert_receivers`` and their secrets.

    Args:
        allow_target: Raises ``Rejected`` for an address that is not allowed.
        rules: The rules that a receiver may name.
    """

    def __init__(self, pool: Pool, allow_target: Callable[[str], None], rules: Iterable[AlertRule]) -> None:
        self._pool, self._allow_target = pool, allow_target
        self._rules = frozenset(rule.name for rule in (*rules, *OWN_RULES))

    async def list(self) -> list[ReceiverView]:
        """Return every receiver by name."""
        return [view(ReceiverView, row) for row in await self._pool.fetch(_SQL["list"], None)]

    async def get(self, name: str) -> ReceiverView:
        """Return one receiver.

        Raises:
            Rejected: ``receiver_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection:
            return await _get(connection, name)

    async def endpoints(self, names: Collection[str]) -> Mapping[str, AlertEndpoint]:
        """Return URL and secrets of the existing receivers among ``names``, for the broker."""
        rows = await self._pool.fetch(_SQL["endpoints"], [*names])
        return {row["name"]: AlertEndpoint(row["url"], tuple(row["secrets"])) for row in rows}

    async def put(self, name: str, wanted: ReceiverRequest, *, caller: Caller) -> StoredReceiver:
        """Create a receiver, with its first secret, or replace it. Waiting messages go to the new URL.

        Raises:
            Rejected: ``invalid_receiver``, ``unknown_rule``, ``too_many_receivers`` (100 at most), ``invalid_target``,
                or what the broker refuses about the URL (``ssrf_blocked``). Permanent.
        """
        _check(name, wanted, self._rules)
        self._allow_target(wanted.url)
        secret = None
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(_SQL["lock_all"])
            before = await _find(connection, name)
            if before is None and await connection.fetchval(_SQL["count"]) >= RECEIVERS_MAX:
                raise Rejected("too_many_receivers", f"at most {RECEIVERS_MAX} receivers of alerts; delete one first")
            rules = None if wanted.rules is None else sorted(set(wanted.rules))
            await connection.execute(_SQL["put"], name, wanted.url, wanted.severity_min, rules)
            if before is None:
                secret = await _add_secret(connection, name)
            after = await _get(connection, name)
            await write_audit(
                connection,
                caller,
                "alert_receivers.put",
                _subject(name),
                before=_audited(before),
                after=_audited(after),
            )
        return StoredReceiver(after, before is None, secret)

    async def rotate_secret(self, name: str, *, caller: Caller, overlap: timedelta = OVERLAP_DEFAULT) -> ReceiverSecret:
        """Make a new signing secret; the old ones stay in use beside it for ``overlap``.

        Raises:
            Rejected: ``receiver_not_found`` (404), ``invalid_overlap``. Permanent.
        """
        check_overlap(overlap)
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(_SQL["lock_all"])
            before = await _get(connection, name)
            await connection.execute(_SQL["retire_secrets"], name, overlap)
            await connection.execute(_SQL["drop_retired"], name)
            secret = await _add_secret(connection, name)
            after = await _get(connection, name)
            await write_audit(
                connection,
                caller,
                "alert_receivers.rotate_secret",
                _subject(name),
                before={"signing_secrets": before.signing_secrets},
                after={"signing_secrets": after.signing_secrets, "overlap": format_duration(overlap)},
            )
        return ReceiverSecret(name, secret, format_duration(overlap))

    async def delete(self, name: str, *, caller: Caller) -> None:
        """Delete a receiver, its secrets, and its waiting messages.

        Raises:
            Rejected: ``receiver_not_found`` (404). Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(_SQL["lock_all"])
            before = await _get(connection, name)
            await connection.execute(_SQL["delete"], name)
            await connection.execute(_SQL["delete_waiting"], name)
            await write_audit(connection, caller, "alert_receivers.delete", _subject(name), before=_audited(before))


def _check(name: str, wanted: ReceiverRequest, rules: frozenset[str]) -> None:
    if not _NAME.fullmatch(name):
        raise Rejected("invalid_receiver", "receiver: 1 to 50 letters, digits, '_', '.' or '-'", field="name")
    if unknown := sorted(set(wanted.rules or ()) - rules):
        message = f"there is no alert rule {unknown[0][:50]!r}; rules: {', '.join(sorted(rules))}"
        raise Rejected("unknown_rule", message, field="rules")
    target = parse_target(wanted.url)
    if not isinstance(target, WebTarget) or target.scheme not in {"http", "https"}:
        raise Rejected(
            "invalid_target", "a receiver of alerts listens at https:// (or an allowed http://)", field="url"
        )


async def _find(connection: Connection, name: str) -> ReceiverView | None:
    row = await connection.fetchrow(_SQL["list"], name)
    return None if row is None else view(ReceiverView, row)


async def _get(connection: Connection, name: str) -> ReceiverView:
    found = await _find(connection, name)
    if found is None:
        raise Rejected("receiver_not_found", f"there is no receiver of alerts {name[:50]!r}", status=404)
    return found


async def _add_secret(connection: Connection, name: str) -> str:
    secret = secret_of(random_bytes(SECRET_BYTES))
    await connection.execute(_SQL["add_secret"], name, secret)
    return secret


def _subject(name: str) -> str:
    return f"alert_receiver:{name}"


def _audited(receiver: ReceiverView | None) -> dict[str, Any] | None:
    """Return what every viewer may read: of the URL only the host, because the rest may be a credential."""
    if receiver is None:
        return None
    parts = urlsplit(receiver.url)
    return {**msgspec.structs.asdict(receiver), "url": f"{parts.scheme}://{parts.netloc}/…"}
