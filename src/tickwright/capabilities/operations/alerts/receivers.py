"""Receivers of alerts, as operators set them, and their signing secrets.

The alerting loop writes an outbox row to ``alert:NAME`` for every receiver with matching rules and severity. The relay
delivers it, signed, to the receiver's URL at that time. A receiver gets the changes after its creation: of an alert
that already fires, the end.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Literal

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
from tickwright.store.audit import AuditedRows
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


class AlertReceivers(AuditedRows[ReceiverView]):
    """The rows of ``tickwright.alert_receivers`` and their secrets.

    Args:
        allow_target: Raises ``Rejected`` for an address that is not allowed.
        rules: The rules that a receiver may name.

    Raises:
        Rejected: ``receiver_not_found`` (404) from every method with a name, except ``put``. Permanent.
    """

    def __init__(self, pool: Pool, allow_target: Callable[[str], None], rules: Iterable[AlertRule]) -> None:
        lock, read = _SQL["lock_all"], _SQL["list"]
        super().__init__(pool, "alert_receiver", partial(view, ReceiverView), lock=lock, read=read, code="receiver")
        self._allow_target = allow_target
        self._rules = frozenset(rule.name for rule in (*rules, *OWN_RULES))

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
        async with self.changing("put", name, caller, creates=True) as change:
            is_new, connection = change.before is None, change.connection
            if is_new and await connection.fetchval(_SQL["count"]) >= RECEIVERS_MAX:
                raise Rejected("too_many_receivers", f"at most {RECEIVERS_MAX} receivers of alerts; delete one first")
            rules = None if wanted.rules is None else sorted(set(wanted.rules))
            await connection.execute(_SQL["put"], name, wanted.url, wanted.severity_min, rules)
            secret = await _add_secret(connection, name) if is_new else None
        return StoredReceiver(change.after, is_new, secret)

    async def rotate_secret(self, name: str, *, caller: Caller, overlap: timedelta = OVERLAP_DEFAULT) -> ReceiverSecret:
        """Make a new signing secret; the old ones stay in use beside it for ``overlap``.

        Raises:
            Rejected: ``invalid_overlap``. Permanent.
        """
        check_overlap(overlap)
        async with self.changing("rotate_secret", name, caller) as change:
            await change.connection.execute(_SQL["retire_secrets"], name, overlap)
            await change.connection.execute(_SQL["drop_retired"], name)
            secret = await _add_secret(change.connection, name)
            secrets = (await self.get(name, change.connection)).signing_secrets
            former = {"signing_secrets": change.before.signing_secrets}
            change.audited = former, {"signing_secrets": secrets, "overlap": format_duration(overlap)}
        return ReceiverSecret(name, secret, format_duration(overlap))

    async def delete(self, name: str, *, caller: Caller) -> None:
        """Delete a receiver, its secrets, and its waiting messages."""
        async with self.changing("delete", name, caller) as change:
            await change.connection.execute(_SQL["delete"], name)
            await change.connection.execute(_SQL["delete_waiting"], name)


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


async def _add_secret(connection: Connection, name: str) -> str:
    secret = secret_of(random_bytes(SECRET_BYTES))
    await connection.execute(_SQL["add_secret"], name, secret)
    return secret
