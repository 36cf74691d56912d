"""The consumer's side of the tables: what a turn needs to know beforehand, and the effect of many answers at once."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

from tickwright.capabilities.polling.consumer.courier import Answer
from tickwright.ports.polls import Turn
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.polling.sql", "consumer.sql")
EVENTS_KEPT = 10
"""How many scan events a tracker keeps; ``write_effects`` says it, too."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known of a turn before it is carried out.

    Attributes:
        interval_minutes: ``None`` when its slot is gone.
        now_s: The database's clock.
        over: Trackers that are polled no more, or that have another partner or external id than the poll says.
        done: Trackers whose poll of this second is done.
    """

    interval_minutes: int | None
    now_s: float
    over: frozenset[int]
    done: frozenset[int]


async def prepare(pool: Pool, turns: Sequence[Turn]) -> list[Prepared]:
    """Return what is known of each of ``turns``, in order."""
    numbers = [n for n, turn in enumerate(turns) for _ in turn.ids]
    rows = await pool.fetch(
        SQL["prepare"],
        list(range(len(turns))),
        [turn.slot_id for turn in turns],
        [turn.due_at for turn in turns],
        [turn.partner_no for turn in turns],
        numbers,
        [tracker_id for turn in turns for tracker_id in turn.ids],
        [external_id for turn in turns for external_id in turn.external_ids],
    )
    found = {row["n"]: row for row in rows}
    return [
        Prepared(row["interval_minutes"], row["now_s"], frozenset(row["over"]), frozenset(row["done"]))
        for row in (found[n] for n in range(len(turns)))
    ]


async def over(pool: Pool, tracker_ids: Iterable[int]) -> frozenset[int]:
    """Return which of these trackers are polled no more."""
    return frozenset(row["id"] for row in await pool.fetch(SQL["over"], sorted(tracker_ids)))


async def account_names(pool: Pool, numbers: Sequence[int]) -> dict[int, str]:
    """Return the names of accounts by their numbers."""
    return dict(await pool.fetch(SQL["account_names"], list(numbers)))


@dataclass(slots=True)
class Effects:
    """Answers of one second, slot and partner: by tracker, with whether it ends it."""

    interval_minutes: int
    answers: dict[int, tuple[Answer, bool]] = field(default_factory=dict)


Key = tuple[int, datetime, int]


@dataclass(slots=True)
class Written:
    """What became of answers.

    Attributes:
        polled: Polls that are done now.
        news: Trackers with news among them.
        late: Polls that came after a tenth of their interval.
        locked: Trackers whose rows other transactions lock: nothing of their answers is written.
    """

    polled: int = 0
    news: int = 0
    late: int = 0
    locked: set[int] = field(default_factory=set)


class UnwritableError(Exception):
    """An answer cannot be made into values of a row: what is in it is not what its type says."""


async def write_effects(connection: Connection, effects: Mapping[Key, Effects], destination: str) -> Written:
    """Write effects in a transaction that holds their turns.

    Two turns of one tracker are written one after the other, so that the second is compared with what the first wrote;
    where the tracker is locked, neither is written.

    Raises:
        UnwritableError: One of the answers; it would be raised again.
    """
    await connection.execute(SQL["lock_turns"], *_columns(sorted(effects)))
    written = Written()
    for step in _steps(effects):
        await _write(connection, effects, step, destination, written)
    return written


def _steps(effects: Mapping[Key, Effects]) -> list[list[Key]]:
    """Return what is written at once: each tracker once, its turns in their order."""
    steps: dict[int, list[Key]] = defaultdict(list)
    next_step: dict[int, int] = {}
    for key in sorted(effects, key=lambda key: key[1]):
        trackers = effects[key].answers
        step = max((next_step.get(tracker_id, 0) for tracker_id in trackers), default=0)
        steps[step].append(key)
        next_step.update(dict.fromkeys(trackers, step + 1))
    return [steps[step] for step in sorted(steps)]


async def count_dropped(connection: Connection, dropped: Sequence[tuple[Key, int]]) -> None:
    """Count polls of turns that will not be carried out; behind ``write_effects``, in its transaction."""
    if dropped:
        await connection.execute(SQL["count_dropped"], *_columns([key for key, _ in dropped]), [n for _, n in dropped])


def _columns(keys: Sequence[Key]) -> list[list[Any]]:
    return [list(column) for column in zip(*keys, strict=True)]


async def _write(
    connection: Connection, effects: Mapping[Key, Effects], keys: Sequence[Key], destination: str, written: Written
) -> None:
    answers: dict[str, list[Any]] = defaultdict(list)
    for n, key in enumerate(keys):
        for tracker_id, (answer, terminal) in effects[key].answers.items():
            if tracker_id in written.locked:
                continue
            try:
                _add(answers, n, tracker_id, answer, terminal=terminal)
            except Exception as error:
                raise UnwritableError(type(error).__name__) from error
    row = await connection.fetchrow(
        SQL["write_effects"],
        list(range(len(keys))),
        *_columns(keys),
        [effects[key].interval_minutes for key in keys],
        *(
            answers[name]
            for name in ("n", "id", "status", "at", "newest_at", "first_events", "last_events", "mark", "terminal")
        ),
        destination,
    )
    written.polled += row["polled"]
    written.news += row["news"]
    written.late += row["late"]
    written.locked.update(row["locked"])


def _add(columns: dict[str, list[Any]], n: int, tracker_id: int, answer: Answer, *, terminal: bool) -> None:
    events = sorted({(event.at, event.text) for event in answer.events})
    texts = [f'{{"at":"{at.astimezone(UTC).isoformat()}","text":{json.dumps(text)}}}' for at, text in events]
    columns["n"].append(n)
    columns["id"].append(tracker_id)
    columns["status"].append(answer.status)
    columns["at"].append(None if answer.at is None else answer.at.astimezone(UTC))
    columns["newest_at"].append(events[-1][0] if events else None)
    last = _list(texts[-EVENTS_KEPT:])
    columns["first_events"].append(_list(texts[:-EVENTS_KEPT]))
    columns["last_events"].append(last)
    columns["mark"].append(_mark(last) if texts else None)
    columns["terminal"].append(terminal)


def _mark(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), signed=True)


def _list(texts: Sequence[str]) -> str:
    return f"[{','.join(texts)}]"
