"""The members of one range of an audience while they are read: which are selected, and how many were not and why.

A client counts once however often its key occurs; it is selected where any of its rows is. A member that cannot be read
or judged is skipped and counted, and up to ten of them are shown.

PostgreSQL and DuckDB have made every field one of its declared type already. SQLite has types per value, so its values
are read here, by the same rules. A client becomes one JSON text: the one that its action carries. JSON has no number
that is NaN or infinite: they are null there.
"""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from tickwright.capabilities.batches.audience.schema import AudienceSettings
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import Action, ChunkResult, FieldType, Judge, Verdict
from tickwright.ports.reports import NOT_UTF8, Column, Dialect, Rows

CLIENT_BYTES_MAX = 65_536
KEY_BYTES_MAX = 1_000
WRITTEN_BYTES_MAX = 2 * 1024 * 1024 - 65_536
"""Of JSON as PostgreSQL writes it out; the outbox takes 2 MiB, with the rest of the message."""
NUMBER_CHARS_MORE_MAX = 330
"""Every number of double precision has fewer."""
_EXPONENT_CHARS_MAX, _FAR = 7, 10**7
_INT64 = 2**63
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,19}\s*", re.ASCII)
_NUMBER = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\s*", re.ASCII)
_NUMBER_CHARS_MAX = 400
_NAN = {"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"}
_TRUE, _FALSE = {"true", "t", "yes", "y", "on", "1"}, {"false", "f", "no", "n", "off", "0"}
_INSTANT = re.compile(
    r"(?P<year>[0-9]{4})-[0-9]{2}-[0-9]{2}"
    r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|z|[+-](0[0-9]|1[0-5])(:?[0-5][0-9])?)?)?",
    re.ASCII,
)
_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
Shape = Callable[[Any], Any]


class UnreadableMember(ValueError):  # never leaves this package
    """A member cannot be read, for this reason."""


def shapes_of(columns: Sequence[Column]) -> list[tuple[int, Shape]]:
    """Return the functions that make JSON values of some columns, by their places."""
    return [(at, _SHAPES[kind]) for at, column in enumerate(columns) if (kind := _family(column)) in _SHAPES]


def client_text(names: Sequence[str], values: Sequence[Any]) -> str:
    """Return a client as the JSON object that an action carries; or it is unreadable: too large, or not to be kept."""
    try:
        made = msgspec.json.encode(dict(zip(names, values, strict=True)))
    except (ValueError, TypeError, OverflowError) as error:
        raise UnreadableMember(f"it is not JSON: {error}") from None
    if len(made) > CLIENT_BYTES_MAX:
        raise UnreadableMember(f"its fields and columns are larger than {CLIENT_BYTES_MAX} bytes")
    if b"\\u" in made or msgspec.Raw in map(type, values):
        check_json(made)
    return made.decode()


def check_json(made: bytes) -> None:
    """Refuse JSON that PostgreSQL does not keep, or writes out much longer than it is.

    PostgreSQL keeps ``1e1000`` as a number of a thousand digits. JSON that passes is written out in at most
    ``WRITTEN_BYTES_MAX``, and in 32 times of its size as ``jsonb``: the bounds of the outbox and of jobs.
    """
    longer = 0

    def measure(number: str) -> None:
        nonlocal longer
        more = _written_chars(number) - len(number)
        if more > NUMBER_CHARS_MORE_MAX:
            text = f"the number {number[:40]} is much longer as PostgreSQL writes it out; make it a text"
            raise UnreadableMember(text)
        longer += max(more, 0)

    try:
        msgspec.json.Decoder(float_hook=measure).decode(made)
    except UnreadableMember:
        raise
    except (ValueError, RecursionError) as error:
        raise UnreadableMember(f"it is not JSON: {error}") from None
    blanks = made.count(b",") + made.count(b":")  # PostgreSQL puts one behind each that is not in a text
    if len(made) + blanks + longer > WRITTEN_BYTES_MAX:
        raise UnreadableMember(f"as PostgreSQL writes it out it is larger than {WRITTEN_BYTES_MAX} bytes")
    if b"\\u0000" in made and _ESCAPED_NUL.search(made):
        raise UnreadableMember("it has a NUL character")


def _written_chars(number: str) -> int:
    """Return the number of characters that PostgreSQL writes for a number: all its digits, and no exponent."""
    digits, _, exponent = number.lower().partition("e")
    whole, _, fraction = digits.lstrip("-").partition(".")
    moved = int(exponent or 0) if len(exponent) <= _EXPONENT_CHARS_MAX else _FAR
    return max(len(whole) + moved, 1) + max(len(fraction) - moved, 0) + 2


def check_key(key: Any) -> None:
    """Refuse a key that cannot be the id of an action: empty, too long or with a NUL character."""
    if key is NOT_UTF8:
        raise UnreadableMember("a key is UTF-8")
    if not key or "\0" in key or len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
        raise UnreadableMember(f"a key has 1 to {KEY_BYTES_MAX} bytes, and no NUL character")


def instant(text: Any) -> Any:
    """Return the instant of a source's text of a timestamp with its zone."""
    return datetime.fromisoformat(text) if isinstance(text, str) else text


def _family(column: Column) -> str:
    return column.type.partition("(")[0] if not column.type.endswith("]") else ""


def _zoned(text: Any) -> Any:
    return f"{text.replace(' ', 'T', 1)}:00" if isinstance(text, str) and text.endswith("+00") else text


def _decimal(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    return msgspec.Raw(text.encode()) if text[-1].isdigit() else None


_SHAPES: Mapping[str, Shape] = {
    "TIMESTAMPTZ": _zoned,
    "TIMESTAMP": lambda text: text.replace(" ", "T", 1) if isinstance(text, str) else text,
    "DECIMAL": _decimal,
}


def read_stored(kind: FieldType, value: Any) -> Any:
    """Return a value of SQLite as one of the field's type, timestamps as texts in UTC; or it is unreadable."""
    if value is None:
        return None
    with suppress(ValueError, OverflowError):
        if value is not NOT_UTF8 and (read := _READERS[kind](value)) is not None:
            return read
    raise UnreadableMember("")


def _int(value: Any) -> int | None:
    if isinstance(value, str) and not _WHOLE.fullmatch(value):
        return None
    if isinstance(value, bytes) or (isinstance(value, float) and not value.is_integer()):
        return None
    read = int(value)
    return read if -_INT64 <= read < _INT64 else None


def _double(value: Any) -> float | None:
    if isinstance(value, bytes):
        return None
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _NAN:
            return float(text)
        if len(value) > _NUMBER_CHARS_MAX or not _NUMBER.fullmatch(value) or math.isinf(float(value)):
            return None
    return float(value)


def _string(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _bool(value: Any) -> bool | None:
    text = value.strip().lower() if isinstance(value, str) else str(value)
    return True if text in _TRUE else False if text in _FALSE else None


def _timestamp(value: Any) -> str | None:
    found = _INSTANT.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 2 <= int(found["year"]) <= 9998:  # a zone may lead out of the years 1 to 9999
        return None
    read = datetime.fromisoformat(value)
    return (read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)).isoformat()


_READERS: Mapping[FieldType, Shape] = {
    "int": _int,
    "double": _double,
    "string": _string,
    "bool": _bool,
    "timestamp": _timestamp,
}


PROBLEMS_MAX = 10
KEY_SHOWN_CHARS_MAX = 200
_HEAD = 2  # the key and the unreadable field come before the fields


class RangeReader:
    """Reads rows of a source as selected clients; iterate it once, then its ``result`` has the counts.

    Args:
        rows: Each a key as text, the name of an unreadable field or ``None``, the fields, the columns.
        judge: Decides here; ``None`` where the source did, or all are selected.
        in_order: Equal keys are beside each other, so that no other keys need to be kept.
    """

    def __init__(
        self,
        settings: AudienceSettings,
        dialect: Dialect,
        rows: Rows | None,
        judge: Judge | None,
        now: datetime,
        *,
        in_order: bool = False,
    ) -> None:
        self._settings, self._rows, self._judge, self._now, self._in_order = settings, rows, judge, now, in_order
        self._names = [*(field.name for field in settings.fields), *settings.columns]
        self._is_stored = dialect == "sqlite"
        self._shapes = shapes_of(rows.columns[_HEAD:]) if rows is not None else []
        read = set(judge.fields) if judge is not None else set()
        judged = [(at, field) for at, field in enumerate(settings.fields) if field.name in read]
        self._judged = [(at, field.name, field.type == "timestamp") for at, field in judged]
        self._keys: set[str] = set()
        self._unreadable = 0
        self._counted: tuple[int, ...] = ()
        self.result = ChunkResult()

    async def __aiter__(self) -> AsyncIterator[Sequence[Action]]:
        """Yield the selected clients in pieces of up to some hundred; never an empty one."""
        if self._rows is None:
            return
        async for piece in self._rows:
            selected = [action for row in piece if (action := self._take(row)) is not None]
            if selected:
                yield selected
            await asyncio.sleep(0)
        result = self.result  # where the source judged, it has counted: only the selected members came here
        result.seen, skipped, result.missing = self._counted or (result.seen, self._unreadable, result.missing)
        result.skipped += skipped

    def skip(self, key: Any, problem: str, members: int = 1) -> None:
        """Count members as skipped, with one example."""
        self.result.skipped += members
        self._show(key, problem)

    def _show(self, key: Any, problem: str) -> None:
        if len(self.result.problems) < PROBLEMS_MAX:
            shown = "" if key is NOT_UTF8 else key[:KEY_SHOWN_CHARS_MAX].replace("\0", "\\u0000")
            self.result.problems.append({"client_id": shown, "problem": problem})

    def _take(self, row: Sequence[Any]) -> Action | None:
        """Return the action of a selected row. A row without a key has the counts of a source that judged."""
        key, bad, *values = row
        if key is None:
            self._counted = tuple(map(int, bad.split()))
            return None
        self.result.seen += 1
        if bad is not None:
            self._unreadable += 1
            self._show(key, unreadable(self._settings, bad))
            return None
        try:
            check_key(key)
            if self._is_stored:
                self._read_stored(values)
            if self._judge is not None and not self._is_selected(self._judge, values):
                return None
            for at, shape in self._shapes:
                values[at] = shape(values[at])
            client = client_text(self._names, values)
        except UnreadableMember as problem:
            self.skip(key, str(problem))
            return None
        except Rejected as error:
            if error.code != "not_judged":
                raise
            self.skip(key, error.message)
            return None
        return Action(key, client) if self._is_new(key) else None

    def _is_selected(self, judge: Judge, values: Sequence[Any]) -> bool:
        client = {name: instant(values[at]) if is_instant else values[at] for at, name, is_instant in self._judged}
        verdict = judge.judge(client, self._now)
        if verdict is Verdict.MISSING:
            self.result.missing += 1
        return verdict is Verdict.SELECTED

    def _is_new(self, key: str) -> bool:
        if key in self._keys:
            return False
        if self._in_order:
            self._keys.clear()
        self._keys.add(key)
        self.result.selected += 1
        return True

    def _read_stored(self, values: list[Any]) -> None:
        for at, field in enumerate(self._settings.fields):
            try:
                values[at] = read_stored(field.type, values[at])
            except UnreadableMember:
                raise UnreadableMember(unreadable(self._settings, field.name)) from None
        for at in range(len(self._settings.fields), len(values)):
            if values[at] is NOT_UTF8:
                raise UnreadableMember(f"{self._names[at]}: its text is not UTF-8")
            values[at] = values[at].hex() if isinstance(values[at], bytes) else values[at]


def unreadable(settings: AudienceSettings, field: str) -> str:
    """Return the problem of a member whose field cannot be read."""
    kind = settings.types.get(field, "string")
    return f"{field}: its value is not of type {kind}"
