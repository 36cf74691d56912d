"""Partners: their settings, whether they are called, and the figures of their calls.

Every selection reads which partners are paused, and every exchange of the partner contract their settings: a change
counts within seconds, in every process, without a restart.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, Self

import msgspec

from tickwright.capabilities.polling.trackers.requests import PARTNER_NAME, check_partner
from tickwright.domain.errors import Rejected
from tickwright.domain.masking import masked_document
from tickwright.partners.quiet import quiet_next, quiet_until
from tickwright.partners.settings import PartnerSettings, read_kept, read_settings
from tickwright.partners.state import state_of
from tickwright.ports.caller import Caller
from tickwright.ports.views import AccessGranting, view
from tickwright.store.audit import AuditedRows
from tickwright.store.pool import Pool
from tickwright.store.queries import load


class PartnerView(msgspec.Struct, AccessGranting, kw_only=True):
    """A partner, and the state that all processes share.

    Attributes:
        called_by: ``remote`` workers of the target or the ``function`` of a live consumer, else ``http`` when the
            settings have it; null without any.
        breaker: ``closed``, ``open`` (no calls until ``open_until``) or ``half_open`` (single trial calls).
        blocked_until: End of the silence that the partner requested (``Retry-After``).
    """

    name: str
    settings: Any
    called_by: str | None
    paused_at: datetime | None
    breaker: str
    open_until: datetime | None
    blocked_until: datetime | None
    failing_since: datetime | None
    last_error: str | None
    last_error_at: datetime | None
    created_at: datetime
    updated_at: datetime

    def masked(self) -> Self:
        """Return it without secrets in addresses and headers of its settings."""
        settings = msgspec.json.decode(self.settings) if isinstance(self.settings, msgspec.Raw) else self.settings
        return msgspec.structs.replace(self, settings=masked_document({"settings": settings})["settings"])


class StoredPartner(msgspec.Struct):
    """The answer to a put."""

    partner: PartnerView
    created: bool


class Budget(msgspec.Struct):
    """At most ``calls`` in any window of ``window_s`` seconds."""

    calls: float
    window_s: int


class Quota(msgspec.Struct, kw_only=True):
    """How much of what a partner allows is used.

    Attributes:
        rate_per_s: What the tightest budget allows; none without one.
        calls_per_s: Calls that are made, as processes count them, or in the breaker's window when this process has
            read them only once. None without calls.
        used: ``calls_per_s`` divided by ``rate_per_s``.
        concurrency: Calls at once that are allowed; none for no limit.
        granted: Of them, to live sessions.
    """

    budgets: list[Budget]
    rate_per_s: float | None
    calls_per_s: float | None
    used: float | None
    concurrency: int | None
    granted: int


class Share(msgspec.Struct):
    """How much of the concurrency one session may use."""

    worker: int
    name: str
    granted: int


class CallCounts(msgspec.Struct, kw_only=True):
    """Calls by outcome within the last five minutes; ``throttled`` is a ``Retry-After``, or 429 without one."""

    since_at: datetime
    answered: int
    throttled: int
    failed: int
    throttled_share: float | None
    failed_share: float | None


class BreakerNow(msgspec.Struct, kw_only=True):
    """The breaker, which all processes share.

    Attributes:
        since: When this state began.
        until: While ``open``: no calls before.
        opened_times: Pauses in a row; each is twice as long as the one before.
        window_answered: Calls of the window that decides whether it opens.
    """

    state: str
    since: datetime | None
    until: datetime | None
    opened_times: int
    failing_since: datetime | None
    window_since: datetime | None
    window_answered: int
    window_failed: int


class QuietNow(msgspec.Struct, kw_only=True):
    """Quiet hours: when the present ones end, and when the next ones are."""

    until: datetime | None
    next_from: datetime | None
    next_until: datetime | None


class WaitingPolls(msgspec.Struct, kw_only=True):
    """Polls inside PostgreSQL; with Kafka most of them wait there. ``capped``: that many or more wait."""

    polls: int
    capped: bool
    oldest_at: datetime | None
    in_hand: int


class PartnerFigures(msgspec.Struct, kw_only=True):
    """How a partner is called now.

    Attributes:
        state: ``called``, or why not: ``paused``, ``quiet``, ``retry_after``, ``breaker_open``, ``on_trial``,
            ``settings_invalid``.
        state_until: When that ends, where it is known.
        calls: Null until this process has served this request twice within five minutes.
    """

    name: str
    at: datetime
    state: str
    state_until: datetime | None
    quota: Quota
    shares: list[Share]
    calls: CallCounts | None
    breaker: BreakerNow
    quiet: QuietNow
    blocked_until: datetime | None
    waiting: WaitingPolls
    last_error: str | None
    last_error_at: datetime | None


_SQL = load("tickwright.capabilities.polling.sql", "partners.sql")


class Partners(AuditedRows[PartnerView]):
    """The rows of ``tickwright.partners``.

    Raises:
        Rejected: ``partner_not_found`` (404) from every method with a name, except ``put``. Permanent.
    """

    def __init__(self, pool: Pool) -> None:
        switches = {action: _SQL[f"{action}_partner"] for action in ("pause", "enable", "reset")}
        lock, read = _SQL["lock_partner"], _SQL["list_partners"]
        super().__init__(pool, "partner", partial(view, PartnerView), lock=lock, read=read, switches=switches)
        self._calls = CallHistory()

    async def figures(self, name: str) -> PartnerFigures:
        """Return how a partner is called now."""
        async with self._pool.acquire() as connection, connection.transaction(readonly=True):
            row = await connection.fetchrow(_SQL["contract_state"], name)
            if row is None:
                raise self.not_found(name)
            number = row["partner_no"]
            shares = [view(Share, share) for share in await connection.fetch(_SQL["shares"], number)]
            waiting = view(WaitingPolls, await connection.fetchrow(_SQL["waiting_polls"], number, ROWS_READ_MAX))
            counted = await connection.fetch(_SQL["counted_calls"], name)
        calls = self._calls.add(name, row["now"], {process: Calls(*counts) for process, *counts in counted})
        settings, _ = read_kept(row["settings"])
        state, until = state_of(row)
        return view(
            PartnerFigures,
            row,
            name=name,
            at=row["now"],
            state=state,
            state_until=until,
            quota=_quota(settings, row, calls, sum(share.granted for share in shares)),
            shares=shares,
            calls=calls,
            breaker=_breaker(row),
            quiet=_quiet(settings, row["now"]),
            waiting=waiting,
        )

    async def put(self, name: str, settings: Mapping[str, Any], *, caller: Caller) -> StoredPartner:
        """Create a partner or replace its settings; every consumer reads them within seconds.

        Raises:
            Rejected: ``invalid_partner``: the name, or with every mistake in the settings. Permanent.
        """
        check_partner(name)
        check_partner_settings(settings)
        async with self.changing("put", name, caller, creates=True) as change:
            await change.connection.execute(_SQL["put_partner"], name, msgspec.json.encode(settings).decode())
        return StoredPartner(change.after, change.before is None)

    async def change(self, name: str, changes: Mapping[str, Any], *, caller: Caller) -> PartnerView:
        """Change the given settings of a partner; ``None`` removes a setting.

        Raises:
            Rejected: ``invalid_partner`` with every mistake. Permanent.
        """
        async with self.changing("change", name, caller) as change:
            settings = merged(msgspec.json.decode(change.before.settings), changes)
            check_partner_settings(settings)
            await change.connection.execute(_SQL["put_partner"], name, msgspec.json.encode(settings).decode())
        return change.after


ROWS_READ_MAX = 1_000
REMEMBERED = timedelta(minutes=5)
APART = timedelta(seconds=5)
PARTNERS_MAX = 1_000
Row = Mapping[str, Any]


class Calls(NamedTuple):
    """Calls by their outcome."""

    answered: int = 0
    throttled: int = 0
    failed: int = 0


class _CallSample(NamedTuple):
    """The processes' counters at an instant."""

    at: datetime
    by_process: Mapping[str, Calls]


class CallHistory:
    """Samples of the processes' counters, per partner, at most one every five seconds, kept for five minutes.

    The counters are in the processes' heartbeats and only rise; two samples make a rate.
    """

    def __init__(self) -> None:
        self._samples: dict[str, deque[_CallSample]] = {}

    def add(self, partner: str, at: datetime, by_process: Mapping[str, Calls]) -> CallCounts | None:
        """Add a sample; return the calls since the oldest one, ``None`` for the first.

        All calls of a process that counts less than before, or that is new, are new ones.
        """
        samples = self._samples.setdefault(partner, deque())
        while samples and at - samples[0].at > REMEMBERED:
            samples.popleft()
        counted = _since(samples, at, by_process)
        if not samples or at - samples[-1].at >= APART:
            samples.append(_CallSample(at, dict(by_process)))
        while len(self._samples) > PARTNERS_MAX:
            del self._samples[next(iter(self._samples))]
        return counted


def _since(samples: Sequence[_CallSample], at: datetime, by_process: Mapping[str, Calls]) -> CallCounts | None:
    if not samples or at <= samples[0].at:
        return None
    total = Calls()
    for before, after in zip(samples, [*list(samples)[1:], _CallSample(at, by_process)], strict=True):
        for name, now in after.by_process.items():
            then = before.by_process.get(name, Calls())
            new = Calls(*(n - t for n, t in zip(now, then, strict=True))) if sum(now) >= sum(then) else now
            total = Calls(*(t + n for t, n in zip(total, new, strict=True)))
    whole = sum(total)
    return CallCounts(
        **total._asdict(),
        since_at=samples[0].at,
        throttled_share=total.throttled / whole if whole else None,
        failed_share=total.failed / whole if whole else None,
    )


def _quiet(settings: PartnerSettings, now: datetime) -> QuietNow:
    until = quiet_until(now.timestamp(), settings.quiet)
    following = quiet_next(now.timestamp() if until is None else until, settings.quiet)
    begins, ends = (None, None) if following is None else (_at(following[0]), _at(following[1]))
    return QuietNow(until=None if until is None else _at(until), next_from=begins, next_until=ends)


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _breaker(row: Row) -> BreakerNow:
    return BreakerNow(
        state=row["breaker"],
        since=row["changed_at"],
        until=row["open_until"] if row["breaker"] == "open" else None,
        opened_times=row["opened_times"],
        failing_since=row["failing_since"],
        window_since=row["window_at"],
        window_answered=row["window_ok"],
        window_failed=row["window_failed"],
    )


def _quota(settings: PartnerSettings, row: Row, calls: CallCounts | None, granted: int) -> Quota:
    rate = settings.rate_per_s
    made = _calls_per_s(settings, row, calls)
    return Quota(
        budgets=[Budget(*budget) for budget in settings.budgets],
        rate_per_s=rate,
        calls_per_s=made,
        used=None if rate is None or made is None else made / rate,
        concurrency=settings.concurrency,
        granted=granted,
    )


def _calls_per_s(settings: PartnerSettings, row: Row, calls: CallCounts | None) -> float | None:
    now: datetime = row["now"]
    if calls is not None:
        return (calls.answered + calls.throttled + calls.failed) / (now - calls.since_at).total_seconds()
    if row["window_at"] is None or now - row["window_at"] > 2 * settings.breaker.window:
        return None
    return float((row["window_ok"] + row["window_failed"]) / max(1.0, (now - row["window_at"]).total_seconds()))


def merged(target: Any, patch: Any) -> Any:
    """Return ``target`` with a JSON merge patch applied (RFC 7396): ``null`` removes a member, objects are merged."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def read_partner(name: str, table: Any, problems: list[str], *, where: str) -> PartnerSettings:
    """Return the settings in a table or keyword arguments, and add every mistake to ``problems``."""
    if not PARTNER_NAME.fullmatch(name):
        problems.append(f"{where}: a name has 1 to 50 letters, digits, '_', '.' or '-'")
    settings = read_settings(table, problems, where=where)
    if settings.http is not None:
        from tickwright.capabilities.polling.consumer.http_courier import read_http  # which needs an HTTP client

        read_http(settings.http, problems, where=f"{where}.http", secrets=lambda _: "")
    return settings


def check_partner_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings that no consumer could use.

    Raises:
        Rejected: ``invalid_partner`` with every mistake. Permanent.
    """
    problems: list[str] = []
    read_partner("partner", settings, problems, where="settings")
    if problems:
        raise Rejected("invalid_partner", "\n".join(problems), problems=problems)
