"""The records of open reports: their announcements, their steps under a claim, and their end.

Every write of a step carries its fence. A stage is announced to every listener over the broadcast exchange, and again
to single listeners by their routing keys. Without a broker, due parts are claimed from the table at once; with one,
after a grace period, so a lost message or an unavailable broker costs seconds.

The message carries what a service in another language needs to deliver its part without a further request. For
Tickwright's own listeners it is only a wake-up notification: the ledger decides what is still to be fetched. Any
program may put messages into a queue, so every defect has a code, under which the message is dead-lettered.
"""

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, structs

from tickwright.capabilities.reports.merge.steps import Part, Record
from tickwright.capabilities.reports.plan import Listener, Plan
from tickwright.domain.errors import Contended, Rejected, storable
from tickwright.domain.message_versions import check_version
from tickwright.ports.reports import Column, PartFacts
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

VERSION = 1
BODY_BYTES_MAX = 262_144
FEED_BYTES_MAX = 65_536
LISTENERS_MAX = 100
YEARS = range(1970, 2200)
CREATE_TRIES = 5

Number = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_]{1,50}\Z")]
TypeName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,49}\Z")]


class Announcement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """See docs/messages.md. Members may be added under version 1; none is renamed or gets another meaning.

    Attributes:
        listeners: Expected in this stage; in a repeated announcement those that are still missing.
        conditions: Normalised.
        feed: Values from the stages before for the queries of this one; ``None`` if it was too large: fetch it, ``GET
            /v1/reports/{id}/parts/{listener}``.
        deadline_at: After which no part counts.
        announced: 1 for the first one of a stage; rises with each delayed check.
    """

    version: int
    report_id: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    epoch: Number
    stage: Number
    type: TypeName
    listeners: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=LISTENERS_MAX)]
    conditions: dict[str, Any]
    feed: dict[str, Any] | None = None
    feed_omitted: bool = False
    requester: Annotated[str, Meta(min_length=1, max_length=200)]
    deadline_at: Annotated[datetime, Meta(tz=True)]
    announced: Number


class _Head(msgspec.Struct):
    version: Any = None


_head = msgspec.json.Decoder(_Head).decode
_decode = msgspec.json.Decoder(Announcement).decode
_columns = msgspec.json.Decoder(tuple[Column, ...]).decode


def write_announcement(stage: Announcement) -> str:
    """Return the announcement as JSON text; a feed above 64 KiB is left out."""
    if len(msgspec.json.encode(stage.feed)) > FEED_BYTES_MAX:
        stage = structs.replace(stage, feed=None, feed_omitted=True)
    stage = structs.replace(stage, deadline_at=stage.deadline_at.astimezone(UTC))
    return msgspec.json.encode(stage).decode()


def read_announcement(body: bytes) -> Announcement:
    """Return the announcement of a message.

    Raises:
        Rejected: ``oversize``, ``not_json``, ``unknown_version``, ``invalid_message``: dead-letter the message.
            Permanent for this message.
        FutureVersionError: Retry elsewhere.
    """
    if len(body) > BODY_BYTES_MAX:
        raise Rejected("oversize", f"{len(body)} bytes; at most {BODY_BYTES_MAX}")
    try:
        version = _head(body).version
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Rejected("not_json", str(error)[:500]) from None
    check_version(version, VERSION, field="version")
    try:
        announcement = _decode(body)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise Rejected("invalid_message", str(error)[:500]) from None
    problem = None
    if len(set(announcement.listeners)) < len(announcement.listeners):
        problem = "listeners: each name once"
    elif (announcement.feed is None) != announcement.feed_omitted:
        problem = "feed: an object, or feed_omitted is true"
    elif announcement.deadline_at.year not in YEARS:
        problem = "deadline_at: from 1970 to 2199"
    if problem is not None:
        raise Rejected("invalid_message", problem)
    return announcement


# ---------------------------------------------------------------------- routes

GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Routes:
    """Destinations in the outbox; ``everyone`` is ``None`` without a broker.

    Attributes:
        everyone: Such as ``amqp:tickwright.reports/``.
        exchange: Its routing keys are the listeners' names, such as ``tickwright.reports.listeners``.
    """

    everyone: str | None = None
    exchange: str | None = None

    @property
    def grace_s(self) -> float:
        """How long an announced part is reserved for its announcement."""
        return 0.0 if self.everyone is None else GRACE_S

    def single(self, listener: str) -> str:
        """Return the destination of one listener."""
        return f"amqp:{self.exchange}/{listener}"


def _served_by(listener: Listener) -> str:
    """Return what serves a part: its function or service, or its source."""
    return f"source:{listener.source}" if listener.kind == "sql" else f"{listener.kind}:{listener.name}"


async def announce_stage(connection: Connection, routes: Routes, stage: Announcement, plan: Plan) -> None:
    """Announce a stage to all of its listeners, after the commit of the caller's transaction."""
    if routes.everyone is not None:
        names = tuple(one.name for one in plan.listeners if one.stage == stage.stage)
        message = write_announcement(structs.replace(stage, listeners=names))
        await connection.execute(SQL["announce"], routes.everyone, f"report/{stage.report_id}", message)
    await connection.execute(SQL["notify"])


SQL = load("tickwright.capabilities.reports.sql", "records.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReport:
    """A checked request. ``plan`` contains the request's own format."""

    type: str
    query_key: str
    conditions: dict[str, Any]
    requester: str
    plan: Plan
    source: str = ""
    department: str | None = None
    notify: str | None = None


class Created(NamedTuple):
    """The record that answers a request; ``created`` is false if an equal one was under way."""

    id: int
    created: bool


@dataclass(frozen=True, slots=True)
class FinishedFile:
    """A whole, uploaded file."""

    address: str
    key: str
    facts: PartFacts
    manifest: Mapping[str, Any]


class RecordsStore:
    """The rows of ``tickwright.reports``.

    Invariants:
        RRC-1: one report under way per requester and query key.
        RRC-2: every write of a step is made under its fence, or not at all.
        RRC-3: a record that is over never changes its status again.
    """

    def __init__(self, pool: Pool, routes: Routes) -> None:
        self._pool, self.routes = pool, routes
        self.connect = pool.acquire

    async def create(self, connection: Connection, new: NewReport) -> Created:
        """Create and announce a record with its parts in the caller's transaction, or return the equal one under way.

        Raises:
            Contended: ``report_in_flight``: equal reports begin and end in each try. Retry.
        """
        plan = new.plan
        for _ in range(CREATE_TRIES):
            row = await connection.fetchrow(
                SQL["insert_report"],
                new.source,
                new.type,
                new.query_key,
                json.dumps(new.conditions),
                new.department,
                new.requester,
                msgspec.json.encode(plan).decode(),
                new.notify,
                float(plan.deadline_s),
                float(plan.check_every_s),
            )
            if row is not None:
                parts = [(one.name, one.stage, one.kind, _served_by(one), one.required) for one in plan.listeners]
                await connection.execute(
                    SQL["insert_parts"], row["id"], *map(list, zip(*parts, strict=True)), self.routes.grace_s
                )
                stage = Announcement(
                    version=VERSION,
                    report_id=row["id"],
                    epoch=row["epoch"],
                    stage=1,
                    type=new.type,
                    listeners=(),
                    conditions=new.conditions,
                    feed={},
                    requester=new.requester,
                    deadline_at=row["deadline_at"],
                    announced=1,
                )
                await announce_stage(connection, self.routes, stage, plan)
                return Created(row["id"], created=True)
            found = await connection.fetchval(SQL["running_report"], new.requester, new.query_key)
            if found is not None:
                return Created(found, created=False)
        raise Contended("report_in_flight", "an equal report begins or ends at this moment; try again")

    # ------------------------------------------------------------------ steps

    async def claim(
        self, owner: int, limit: int, *, number: int = 0, merging: Sequence[str] = (), slots: int = 1
    ) -> list[Record]:
        """Claim due steps without an owner; the session may refuse a claim of that ``number``.

        Claim at most one step that waits for a merge slot: ``slots`` are free besides those of the types ``merging``,
        and the last one is for a type that has none.
        """
        rows = await self._pool.fetch(SQL["claim_steps"], owner, limit, number, [*merging], slots)
        return [_record(row) for row in rows]

    async def next_in_s(self) -> float | None:
        """Return in how many seconds a step is due; ``None`` if none is."""
        found: float | None = await self._pool.fetchval(SQL["next_step_in"])
        return found

    async def release_unknown(self, connection: Connection, owner: int, known: Collection[tuple[int, int]]) -> int:
        """Release steps that ``owner`` has beyond ``known``, by report and fence: the answer to a claim was lost."""
        return int(await connection.fetchval(SQL["release_unknown_steps"], owner, *_arrays(known)))

    async def confirm(self, steps: Collection[tuple[int, int]], owner: int) -> set[tuple[int, int]]:
        """Return which of these steps, by report and fence, ``owner`` still has."""
        rows = await self._pool.fetch(SQL["confirm_steps"], *_arrays(steps), owner)
        return {(row["id"], row["fence"]) for row in rows}

    async def waiting(self, owner: int) -> dict[tuple[int, int], Plan]:
        """Return the (report, epoch) whose step waits for a merge slot, or is owned by ``owner``; at most 10,000."""
        rows = await self._pool.fetch(SQL["waiting_steps"], owner)
        return {(row["id"], row["epoch"]): msgspec.json.decode(row["plan"], type=Plan) for row in rows}

    async def parts(self, report_id: int) -> list[Part]:
        """Return every part of a report."""
        return [_part(row) for row in await self._pool.fetch(SQL["report_parts"], report_id)]

    async def leave(self, record: Record, owner: int, *, after_s: float | None = None) -> None:
        """Release the step: due after ``after_s``, or at its next check; or when its stage is complete."""
        await self._pool.execute(SQL["leave_step"], record.id, record.fence, owner, after_s)

    async def wait_for_slot(self, record: Record, owner: int) -> None:
        """Release the step until a process has a merge slot for it."""
        async with self._fenced(SQL["wait_for_slot"], record, owner) as connection:
            if connection is not None:
                await connection.execute(SQL["notify"])

    async def announce_again(self, record: Record, owner: int, listeners: Sequence[str]) -> None:
        """Count a delayed check, announce the stage to the missing ``listeners``, and release the step."""
        async with self._fenced(SQL["count_check"], record, owner, float(record.plan.check_every_s)) as connection:
            if connection is None:
                return
            for name in listeners if self.routes.everyone else ():
                message = write_announcement(_stage_of(record, listeners=(name,), announced=record.checks + 2))
                await connection.execute(SQL["announce"], self.routes.single(name), f"report/{record.id}", message)
            await connection.execute(SQL["leave_step"], record.id, record.fence, owner, None)
            await connection.execute(SQL["notify"])

    async def next_stage(self, record: Record, owner: int, feed: Mapping[str, Any]) -> bool:
        """Begin the next stage with ``feed`` for its queries; false if the step was lost."""
        every_s = float(record.plan.check_every_s)
        async with self._fenced(SQL["next_stage"], record, owner, json.dumps(feed), every_s) as connection:
            if connection is None:
                return False
            stage = _stage_of(record, stage=record.stage + 1, feed={**record.feed, **feed})
            await connection.execute(SQL["open_stage"], record.id, stage.stage, self.routes.grace_s)
            await announce_stage(connection, self.routes, stage, record.plan)
        return True

    async def begin_merge(self, record: Record, owner: int) -> bool:
        """Write that the merge begins, and drop open parts; false if the step was lost."""
        async with self._fenced(SQL["begin_merge"], record, owner, record.epoch) as connection:
            if connection is not None:
                await connection.execute(SQL["drop_open_parts"], record.id)
            return connection is not None

    async def begin_try(self, record: Record, owner: int) -> bool:
        """Count a try of a step that merges; false if the step was lost."""
        return await self._pool.fetchval(SQL["begin_try"], record.id, record.fence, owner) is not None

    async def finish(self, record: Record, owner: int, file: FinishedFile) -> bool:
        """Write that the report has its file; false if the step was lost: then no record names the file."""
        facts = file.facts
        async with self._fenced(
            SQL["finish_report"], record, owner, record.epoch, file.address, file.key, facts.rows, facts.bytes,
            facts.checksum, json.dumps(file.manifest), float(record.plan.keep_s),
        ) as connection:  # fmt: skip
            if connection is not None:
                await self._end(connection, record.id)
            return connection is not None

    async def fail(self, record: Record, owner: int, code: str, text: str, manifest: Mapping[str, Any]) -> bool:
        """End the report without a file, with a reason; false if the step was lost."""
        found = json.dumps(manifest)
        async with self._fenced(SQL["fail_report"], record, owner, code, storable(text)[:1000], found) as connection:
            if connection is not None:
                await self._end(connection, record.id)
            return connection is not None

    async def restart(self, record: Record, owner: int) -> bool:
        """Fetch all parts again under the next epoch; false if the step was lost."""
        every_s = float(record.plan.check_every_s)
        async with self._fenced(SQL["restart_report"], record, owner, every_s) as connection:
            if connection is None:
                return False
            epoch = record.epoch + 1
            await connection.execute(SQL["delete_data"], record.id)
            await connection.execute(SQL["reset_parts"], record.id, epoch, self.routes.grace_s)
            stage = _stage_of(record, epoch=epoch, stage=1, feed={})
            await announce_stage(connection, self.routes, stage, record.plan)
        return True

    # ------------------------------------------------------------------ cancellation

    async def cancel(self, connection: Connection, report_id: int) -> bool:
        """End a report without a file; false if it is over or missing."""
        if await connection.fetchval(SQL["cancel_report"], report_id) is None:
            return False
        await self._end(connection, report_id)
        return True

    # ------------------------------------------------------------------ pieces

    @asynccontextmanager
    async def _fenced(
        self, query: str, record: Record, owner: int, *arguments: Any
    ) -> AsyncIterator[Connection | None]:
        """Open a transaction that begins with a fenced write; yield ``None`` if the step was lost."""
        async with self._pool.acquire() as connection, connection.transaction():
            found = await connection.fetchval(query, record.id, record.fence, owner, *arguments)
            yield None if found is None else connection

    async def _end(self, connection: Connection, report_id: int) -> None:
        await connection.execute(SQL["drop_open_parts"], report_id)
        await connection.execute(SQL["delete_data"], report_id)
        await connection.execute(SQL["notify_end"], report_id)


def _arrays(steps: Collection[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [report_id for report_id, _ in steps], [fence for _, fence in steps]


def _stage_of(record: Record, **changes: Any) -> Announcement:
    stage = Announcement(
        version=VERSION,
        report_id=record.id,
        epoch=record.epoch,
        stage=record.stage,
        type=record.type,
        listeners=(),
        conditions=record.conditions,
        feed=record.feed,
        requester=record.requester,
        deadline_at=record.deadline_at,
        announced=1,
    )
    return structs.replace(stage, **changes)


def _record(row: Any) -> Record:
    plan = msgspec.json.decode(row["plan"], type=Plan)
    return Record(**{**row, "conditions": json.loads(row["conditions"]), "feed": json.loads(row["feed"]), "plan": plan})


def _part(row: Any) -> Part:
    return Part(**{**row, "columns": _columns(row["columns"] or "[]")})
