"""The rows of ``tickwright.batches`` and their versions, as operators change them: the row is locked before the act.

The producer and everybody who acts on executions lock in the same order, the batch and then its executions, so that
nobody slips in between a look and the act.
"""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from tickwright.capabilities.batches.definitions.schema import Terms
from tickwright.capabilities.batches.executions.states import (
    BatchAction,
    BatchEffect,
    BatchFacts,
    BatchStatus,
    BatchType,
    batch_effect,
)
from tickwright.domain.errors import Rejected
from tickwright.domain.recurrence import Recurrence
from tickwright.store.pool import Connection
from tickwright.store.queries import filled, load

SQL = filled(load("tickwright.capabilities.batches.sql", "batches.sql"), "shown")
SCHEDULE_WORDS = (
    "type", "date_time_execution", "time_zone", "restartable", "restartable_unit", "restartable_unit_type", "cron",
)  # fmt: skip
"""What decides about when: a change of these counts from the next occurrence on."""
SLOTS_SHOWN = 5
_TICK = timedelta(microseconds=1)


class Kind(NamedTuple):
    """A kind of batch: as the table has it, and what it is called in codes, sentences and paths."""

    name: str
    noun: str

    @property
    def plural(self) -> str:
        """As in paths and in the actions of the audit trail."""
        return f"{self.noun}es" if self.noun.endswith("ch") else f"{self.noun}s"

    def subject(self, name: str) -> str:
        """Return what the audit trail calls one of them."""
        return f"{self.noun}:{name}"


CAMPAIGN, PROGRAM = Kind("campaign", "campaign"), Kind("program", "batch")


class Draft(NamedTuple):
    """A definition that has been checked.

    Attributes:
        own: What the kind says beside the terms, in its words.
    """

    terms: Terms
    own: Mapping[str, Any]

    @property
    def words(self) -> dict[str, Any]:
        """All of it, as a version keeps it."""
        return {**self.terms.words(), **self.own}

    @property
    def definition(self) -> dict[str, Any]:
        """What an execution is begun with."""
        return {**self.terms.settings(), **self.own}


async def lock(connection: Connection, kind: Kind, name: str) -> int | None:
    """Lock a batch until the end of the transaction and return its id; ``None`` where there is none."""
    found: int | None = await connection.fetchval(SQL["lock_batch"], kind.name, name)
    return found


async def get(connection: Connection, kind: Kind, name: str) -> Any:
    """Return a batch's row with ``terms`` and the database's ``now``; ``None`` where there is none."""
    return await connection.fetchrow(SQL["get_batch"], kind.name, name)


async def create(
    connection: Connection, kind: Kind, name: str, draft: Draft, *, set_by: str, made_by: str
) -> int | None:
    """Write a new batch and its first version; ``None`` where the name is taken."""
    batch_id: int | None = await connection.fetchval(SQL["create_batch"], *_columns(kind, name, draft, set_by))
    if batch_id is not None:
        await _put_version(connection, batch_id, draft, made_by)
    return batch_id


async def edit(  # noqa: PLR0917  a row is written in one place
    connection: Connection, kind: Kind, row: Any, draft: Draft, set_by: str, made_by: str
) -> None:
    """Write the next version of a locked batch; a changed schedule counts from now on."""
    effect = batch_effect(BatchAction.EDIT, BatchFacts(BatchType(draft.terms.type), BatchStatus(row["status"])))
    status, next_slot_at = row["status"], row["next_slot_at"]
    if isinstance(effect, BatchEffect) and effect.status is not None:
        status, next_slot_at = str(effect.status), None
    elif status == "SCHEDULED" and _schedule(words_of(row)) != _schedule(draft.words):
        next_slot_at = first_from(draft.terms.recurrence(), row["now"])
    columns = _columns(kind, row["name"], draft, set_by)
    batch_id: int = await connection.fetchval(SQL["edit_batch"], *columns, status, next_slot_at)
    await _put_version(connection, batch_id, draft, made_by)


def words_of(row: Any) -> dict[str, Any]:
    """Return the words of the version that a row came with."""
    words: dict[str, Any] = msgspec.json.decode(row["terms"])
    return words


def recurrence_of(row: Any) -> Recurrence:
    """Return when the batch of a row occurs.

    Raises:
        Rejected: Somebody has written by SQL what no calendar can read. Permanent.
    """
    return Recurrence(
        first_at=row["date_time_execution"],
        time_zone=row["time_zone"],
        unit=row["restartable_unit"] if row["restartable"] else None,
        unit_type=row["restartable_unit_type"] if row["restartable"] else None,
        cron=row["cron"],
    )


def first_from(recurrence: Recurrence, now: datetime) -> datetime | None:
    """Return the first occurrence at or after ``now``."""
    return recurrence.next_after(now - _TICK)


def next_of(row: Any) -> datetime | None:
    """Return the first occurrence of a row's batch from now on; none of a calendar that cannot be read."""
    with suppress(Rejected):
        return first_from(recurrence_of(row), row["now"])
    return None


def next_slots(row: Any) -> list[Any]:
    """Return the next occurrences of a row's batch; none of a schedule that cannot be read."""
    if row["type"] == "MANUAL":
        return []
    try:
        recurrence = recurrence_of(row)
    except Rejected:  # written by SQL; the producer says so in its log
        return []

    def ascending() -> Any:
        at = first_from(recurrence, row["now"])
        while at is not None:
            yield at
            at = recurrence.next_after(at)

    return list(islice(ascending(), SLOTS_SHOWN))


async def set_status(connection: Connection, row: Any, effect: BatchEffect) -> datetime | None:
    """Write what a locked batch becomes, and return its next occurrence."""
    before: datetime | None = row["next_slot_at"]
    if effect.status is None:
        return before
    next_slot_at = next_of(row) if effect.status is BatchStatus.SCHEDULED else None
    await connection.execute(SQL["set_status"], row["id"], str(effect.status), next_slot_at)
    return next_slot_at


def _schedule(words: Mapping[str, Any]) -> list[Any]:
    return [words.get(word) for word in SCHEDULE_WORDS]


def _columns(kind: Kind, name: str, draft: Draft, set_by: str) -> tuple[Any, ...]:
    terms = draft.terms
    return (
        kind.name, name, set_by, terms.type, terms.date_time_execution, terms.time_zone, terms.restartable,
        terms.restartable_unit, terms.restartable_unit_type, terms.cron, terms.overlap, terms.misfire,
        terms.misfire_max, terms.misfire_grace, list(terms.product_codes),
        msgspec.json.encode(draft.definition).decode(),
    )  # fmt: skip


async def _put_version(connection: Connection, batch_id: int, draft: Draft, made_by: str) -> None:
    text = msgspec.json.encode(draft.words).decode()
    await connection.execute(SQL["put_version"], batch_id, text, made_by)
