"""Entities for operators: what is polled, for which modules, and the results.

Nothing here publishes: schedulers are notified of every change of the table and read their lists again, so a change
counts from their next round on, in every process. Secrets that were written into a party by SQL are masked.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from tickwright.capabilities.fanout.consumer.task_run import timed_out_lately
from tickwright.capabilities.fanout.entities.schemas import (
    COLUMNS,
    EntityDetail,
    EntityExplanation,
    EntityModule,
    EntityRequest,
    EntityView,
    NewEntity,
    StoredEntity,
    check_entity,
    entity_of_row,
    masked,
    masked_hosts,
    read_line,
)
from tickwright.capabilities.fanout.windows import parse_modules, window_at
from tickwright.domain.errors import Rejected
from tickwright.domain.lines import ImportResult, csv_reader
from tickwright.domain.time_texts import format_duration, instant_text, wait_text
from tickwright.engine.bulk_import import BatchedImport
from tickwright.partners.state import reasons_not_called
from tickwright.ports.caller import Caller
from tickwright.ports.fanout import TIMED_OUT
from tickwright.ports.views import Page, Reason, view
from tickwright.store.audit import write_audit
from tickwright.store.paging import LIMIT_DEFAULT, Cursors, checked_limit, fetch_page
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

# Explains why an entity is polled for a module now, or is not, as codes and text. Pure: the store loads the facts.
#
# Reasons are in order: what prevents publishing, what prevents running, the windows. The first one is the summary.

ERROR_CHARS_MAX = 300
Facts = Mapping[str, Any]


def explain(facts: Facts, state: Facts) -> EntityExplanation:
    """Return the reasons for one entity and module, from the rows of the queries ``explain`` and ``module_states``."""
    shut, running = list(_not_polled(facts, state)), list(_running(state))
    if shut:
        status, reasons = "not_polled", [*shut, *running]
    else:
        ran = _has_run(state)
        failing = list(_failing(state))
        status = "running" if running else "ran" if ran else "failing" if failing else "due"
        around = [*_partner(facts), *_no_process(facts, state), *_gate(facts, state)]
        late = [*failing, *_slow(state), *around]
        reasons = [*running, *_window(state), *late] if ran else [*running, *late, *_window(state)]
    reasons.extend(_last_success(state))
    return EntityExplanation(facts["code"], state["name"], status, reasons[0].text, reasons)


def _not_polled(facts: Facts, state: Facts) -> Iterator[Reason]:
    """Yield what prevents every scheduler from publishing it."""
    code, name = facts["code"], state["name"]
    if not facts["is_polling_enabled"]:
        yield Reason("entity_paused", f"polling of {code} is paused: its is_polling_enabled is false")
    if not state["known"]:
        yield Reason("module_unknown", f"there is no module {name}; tickwright modules put {name} --every 15m")
    if name not in parse_modules(facts["polling_enabled_modules"]):
        listed = facts["polling_enabled_modules"] or "none"
        yield Reason("module_not_listed", f"{code} is not polled for {name}; its polling_enabled_modules: {listed}")
    if state["paused_at"] is not None:
        yield Reason("module_paused", f"the module {name} is paused since {instant_text(state['paused_at'])}")
    if facts["schedulers"] and _closed_gates(facts, state) == facts["schedulers"]:
        yield Reason("module_closed", f"no scheduler publishes it: {_gate_remedy(state)}")


def _closed_gates(facts: Facts, state: Facts) -> int:
    """Return how many schedulers do not publish the module; each has the gate in its own environment."""
    return int(facts["schedulers"] - facts["opening"] if state["is_gated"] else facts["closing"])


def _gate_remedy(state: Facts) -> str:
    variable = f"ENABLE_{state['name']}_POLLING"
    if state["is_gated"]:
        return f"the module is gated, so the environment of a scheduler has to say {variable}=true"
    return f"their environment says {variable}=false"


def _gate(facts: Facts, state: Facts) -> Iterator[Reason]:
    shut = _closed_gates(facts, state)
    if shut:
        of = f"{shut} of {facts['schedulers']} schedulers"
        yield Reason("module_closed_in_part", f"{of} do not publish it, the others do: {_gate_remedy(state)}")


def _running(state: Facts) -> Iterator[Reason]:
    if state["running_since"] is not None:
        since, window = instant_text(state["running_since"]), instant_text(state["running_window_at"])
        yield Reason("running", f"a run for the window of {window} is under way since {since}")


def _failing(state: Facts) -> Iterator[Reason]:
    if state["failures"]:
        times = "once" if state["failures"] == 1 else f"{state['failures']} times"
        at = "" if state["last_error_at"] is None else f" at {instant_text(state['last_error_at'])}"
        error = (state["last_error"] or "no reason given")[:ERROR_CHARS_MAX]
        yield Reason("failing", f"it failed {times} since its last success; the last error{at}: {error}")


def _slow(state: Facts) -> Iterator[Reason]:
    if state["last_error"] != TIMED_OUT:
        return
    share = "all slow entities together hold a part of the slots (TICKWRIGHT_FANOUT_SLOW_PERCENT)"
    if state["failures"]:
        yield Reason("slow", f"its last run timed out, so its next one waits for a slot of the slow ones: {share}")
    elif state["last_error_at"] is not None and timed_out_lately(
        (state["now"] - state["last_error_at"]).total_seconds(), state["interval_seconds"] or 0
    ):
        at = instant_text(state["last_error_at"])
        yield Reason("slow", f"a run timed out at {at}, so its next ones wait for a slot of the slow ones: {share}")


def _partner(facts: Facts) -> Iterator[Reason]:
    partner = facts["partner"]
    if partner is None:
        return
    if facts["partner_paused_at"] is not None:
        since = instant_text(facts["partner_paused_at"])
        yield Reason("partner_paused", f"the partner {partner} is paused since {since}; nothing is run")
    yield from reasons_not_called(partner, facts, facts["partner_error"])


def _no_process(facts: Facts, state: Facts) -> Iterator[Reason]:
    if not facts["schedulers"]:
        text = "no live process has the role scheduler: no window is published"
        yield Reason("no_scheduler", text)
    if not facts["consumers"]:
        yield Reason("no_consumer", "no live process has the role fanout-consumer: no task is run")
    elif not facts["able"]:
        yield Reason("no_handler", f"no live fanout-consumer has a function for {state['name']}; see @app.module")


def _has_run(state: Facts) -> bool:
    last = state["last_window_at"]
    window = window_at(state["now"].timestamp(), state["interval_seconds"])
    return last is not None and bool(last.timestamp() >= window.start_s)


def _window(state: Facts) -> Iterator[Reason]:
    now: datetime = state["now"]
    window = window_at(now.timestamp(), state["interval_seconds"])
    begins, ends = (instant_text(datetime.fromtimestamp(at, UTC)) for at in (window.start_s, window.end_s))
    wait = wait_text(datetime.fromtimestamp(window.end_s, UTC) - now)
    if _has_run(state):
        yield Reason("window_ran", f"the window of {begins} ran; the next one begins at {ends}, in {wait}")
    else:
        yield Reason(
            "window_open", f"the window of {begins} has not run with success yet; it ends at {ends}, in {wait}"
        )


def _last_success(state: Facts) -> Iterator[Reason]:
    if state["last_success_at"] is not None:
        at = instant_text(state["last_success_at"])
        yield Reason("succeeded", f"its last run that succeeded began at {at}")
    elif state["known"]:
        yield Reason("never_succeeded", "no run of it has succeeded yet, as far as the database knows")


SQL = load("tickwright.capabilities.fanout.sql", "entities.sql")
LAST_CODE = "~"
"""Sorts after every code."""
SEARCHED_MAX = 5_000
"""Entities that a page reads when it filters by more than the code."""
BATCH_ROWS_MAX = 1_000


def check_known(new: NewEntity, modules: Any, *, partner: bool) -> None:
    """Refuse an entity with an unknown module or partner.

    Raises:
        Rejected: ``unknown_module``, ``unknown_partner``. Permanent until they are set up.
    """
    unknown = next((name for name in new.modules if name not in modules), None)
    if unknown is not None:
        known = ", ".join(sorted(modules)) or "none yet"
        raise Rejected(
            "unknown_module",
            f"there is no module {unknown}; known: {known}; another one comes with tickwright modules put",
            field="polling_enabled_modules",
            known=sorted(modules),
        )
    if not partner:
        raise Rejected(
            "unknown_partner", f"there is no partner {new.partner!r}; tickwright partners put", field="partner"
        )


class EntityQuery(msgspec.Struct, frozen=True):
    """Filter and page of a listing of entities.

    Attributes:
        module: A module that they list, in any spelling.
        q: Prefix of their codes.
        limit: 1 to 200.
    """

    module: str | None = None
    enabled: bool | None = None
    q: str = ""
    cursor: str | None = None
    limit: int = LIMIT_DEFAULT


class Entities:
    """The rows of ``tickwright.entities``, with their ``tickwright.fanout_cursors``.

    Raises:
        Rejected: ``entity_not_found`` (404) from every method with a code, except ``put``. Permanent.
    """

    def __init__(self, pool: Pool, cursors: Cursors) -> None:
        self._pool, self._cursors = pool, cursors

    async def list(self, query: EntityQuery) -> Page[EntityView]:
        """Return one page of entities, by their codes.

        With a filter a page may hold fewer than its limit, or none, and still have a next one: it reads at most 5,000.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit, module = checked_limit(query.limit), None if query.module is None else query.module.strip().upper()
        listing = ("entities", module, query.enabled, query.q)
        after = "" if query.cursor is None else await self._cursors.read(query.cursor, str, *listing)
        rows = await fetch_page(
            self._pool, SQL["list_entities"], after, query.q, query.q + LAST_CODE, module, query.enabled,
            limit + 1, SEARCHED_MAX,
        )  # fmt: skip
        items = [view(EntityView, row) for row in rows[:limit] if row["code"] is not None]
        position = items[-1].code if len(rows) > limit else rows[0]["last_code"]
        return Page(items, None if position is None else await self._cursors.make(position, *listing))

    async def get(self, code: str) -> EntityDetail:
        """Return one entity with its last results per module."""
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(SQL["get_entity"], code)
            if row is None:
                raise _not_found(code)
            states = await self._states(connection, code, parse_modules(row["polling_enabled_modules"]))
        party = msgspec.Raw(masked(row["party"]).encode())
        return EntityDetail(**_fields(row), party=party, modules=[module_of(state) for state in states])

    async def explain(self, code: str, module: str) -> EntityExplanation:
        """Return why an entity is polled for a module now, or is not."""
        name = module.strip().upper()
        async with self._pool.acquire() as connection:
            facts = await connection.fetchrow(SQL["explain"], code, name)
            if facts is None:
                raise _not_found(code)
            [state] = [row for row in await self._states(connection, code, [name]) if row["name"] == name]
        return explain(facts, state)

    async def put(self, code: str, request: EntityRequest, *, caller: Caller) -> StoredEntity:
        """Create an entity or replace it; schedulers are notified at once. An equal one changes nothing.

        Raises:
            Rejected: The errors of :func:`check_entity`, ``unknown_module``, ``unknown_partner``. Permanent.
        """
        new = check_entity(code, request)
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, code)
            names = await connection.fetchrow(SQL["known"], new.partner)
            check_known(new, names["modules"], partner=names["partner"])
            row = await connection.fetchrow(
                SQL["put_entity"], new.code, new.party, new.is_polling_enabled, ",".join(new.modules), new.partner
            )
            after = await self._written(connection, caller, "put", code, before)
        return StoredEntity(after, row is not None and bool(row["created"]))

    async def delete(self, code: str, *, caller: Caller) -> None:
        """Stop polling an entity and delete it; its cursors stay, in case it is created again."""
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, code)
            if before is None:
                raise _not_found(code)
            await connection.execute(SQL["delete_entity"], code)
            await write_audit(connection, caller, "entities.delete", f"entity:{code}", before=_shown(before))

    async def switch(self, code: str, action: Literal["pause", "enable"], *, caller: Caller) -> EntityView:
        """Stop polling an entity, or poll it again from the current window on. Published tasks still run."""
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, code)
            if before is None:
                raise _not_found(code)
            await connection.execute(SQL["set_enabled"], code, action == "enable")
            return await self._written(connection, caller, action, code, before)

    async def import_lines(self, chunks: AsyncIterator[bytes], *, caller: Caller, as_csv: bool = False) -> ImportResult:
        """Import a stream of NDJSON, or of CSV after a line of columns.

        An exception of ``chunks`` (never an ``OSError``) ends the import and passes through.

        Raises:
            Rejected: ``invalid_columns`` (400): the first line of a CSV file names others. Permanent.
            Unavailable: ``import_interrupted`` with ``committed_lines``. Send it again.
        """
        read = csv_reader(COLUMNS[:1], COLUMNS[1:], entity_of_row) if as_csv else read_line
        return await _EntityImport(self._pool, caller, read).run(chunks)

    async def _states(self, connection: Connection, code: str, names: Sequence[str]) -> Sequence[Any]:
        states: Sequence[Any] = await connection.fetch(SQL["module_states"], code, names)
        return states

    async def _locked(self, connection: Connection, code: str) -> Any:
        await connection.execute(SQL["lock_entity"], code)
        return await connection.fetchrow(SQL["get_entity"], code)

    async def _written(self, connection: Connection, caller: Caller, action: str, code: str, before: Any) -> EntityView:
        after = await connection.fetchrow(SQL["get_entity"], code)
        was = None if before is None else _shown(before)
        if was is None or was["config_version"] != after["config_version"]:
            await write_audit(
                connection, caller, f"entities.{action}", f"entity:{code}", before=was, after=_shown(after)
            )
        return view(EntityView, after)


def _fields(row: Any) -> dict[str, Any]:
    return {name: row[name] for name in EntityView.__struct_fields__}


def _shown(row: Any) -> dict[str, Any]:
    """Return an entity for the audit trail, without secrets."""
    return {**_fields(row), "party": msgspec.Raw(masked_hosts(row["party"]).encode())}


def module_of(state: Any) -> EntityModule:
    """Return the last results of one entity for one module."""
    length_s = state["interval_seconds"]
    window = None if length_s is None else window_at(state["now"].timestamp(), length_s)
    return EntityModule(
        **{name: state[name] for name in _STATE},
        every=None if window is None else format_duration(timedelta(seconds=window.length_s)),
        paused=state["paused_at"] is not None,
        window_at=None if window is None else datetime.fromtimestamp(window.start_s, UTC),
        next_window_at=None if window is None else datetime.fromtimestamp(window.end_s, UTC),
    )


_STATE = (
    "name", "known", "last_window_at", "last_success_at", "running_since", "running_window_at", "failures",
    "last_error", "last_error_at",
)  # fmt: skip


def _not_found(code: str) -> Rejected:
    return Rejected("entity_not_found", f"there is no entity {code[:100]!r}", status=404)


# Imports: NDJSON or CSV, one entity per line, in constant memory. Each line replaces its entity, as a put does. Of two
# lines with one code the later one counts; the same file again changes nothing.


class _EntityImport(BatchedImport[NewEntity]):
    """One running import."""

    def __init__(self, pool: Pool, caller: Caller, read: Callable[[bytes], NewEntity | None]) -> None:
        super().__init__(pool, caller, action="entities.import", subject="entities", rows_max=BATCH_ROWS_MAX)
        self._read_line = read
        self._modules: frozenset[str] = frozenset()
        self._partners: frozenset[str] = frozenset()

    async def _learn(self, connection: Connection) -> None:
        row = await connection.fetchrow(SQL["known_names"])
        self._modules, self._partners = frozenset(row["modules"]), frozenset(row["partners"])

    async def _thing(self, line: bytes, _number: int) -> NewEntity | None:
        entity = self._read_line(line)
        if entity is not None:
            check_known(entity, self._modules, partner=entity.partner is None or entity.partner in self._partners)
        return entity

    async def _write(self, connection: Connection, batch: Sequence[NewEntity]) -> None:
        if not batch:
            return
        newest = {entity.code: entity for entity in batch}.values()
        created: int = await connection.fetchval(
            SQL["put_entities"],
            [new.code for new in newest],
            [new.party for new in newest],
            [new.is_polling_enabled for new in newest],
            [",".join(new.modules) for new in newest],
            [new.partner for new in newest],
        )
        self.result.created += created
        self.result.existing += len(batch) - created
