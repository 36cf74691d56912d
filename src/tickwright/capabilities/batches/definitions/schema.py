"""The definition of a batch: when it runs and how it is worked, read from JSON, TOML or keyword arguments.

::

    type = "AUTOMATIC"                        # or MANUAL: an operator starts it
    date_time_execution = "2026-11-01T09:00"  # the first run: in time_zone, or RFC 3339 with its offset
    time_zone = "Europe/Kyiv"
    restartable = true                        # again every restartable_unit x restartable_unit_type
    restartable_unit = 6
    restartable_unit_type = "HOURS"           # MINUTES, HOURS, DAYS, WEEKS, MONTHS
    cron = "0 9 * * 1-5"                      # instead of restartable; with date_time_execution: not before it
    overlap = "skip"                          # a run is due while another is open: skip, queue, replace
    misfire = "one"                           # runs found too late: the newest one, all (up to misfire_max), none
    misfire_max = 100
    misfire_grace = "1m"                      # later than this is too late
    product_codes = ["LOAN"]
    chunk_rows = 5000                         # 100 to 100,000
    rate = "1000/s"                           # clients, of all consumers together; left out: no limit
    attempts = 10                             # of one chunk, 1 to 100
    on_finished = "https://…"                 # gets a message at the end, finished or failed

A local time that the clocks skip is refused; of one that comes twice the first is meant. All mistakes are reported at
once. Campaigns add fields of their own in :mod:`.campaigns`, batches of programs in :func:`read_program`.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, TypeVar, get_args
from zoneinfo import ZoneInfo

import msgspec

from tickwright.capabilities.batches.audience.schema import read_audience
from tickwright.capabilities.batches.executions.states import BatchType, Overlap
from tickwright.domain.calendars.recurrence import UNIT_MAX, Recurrence, UnitType
from tickwright.domain.calendars.wallclock import zone_of
from tickwright.domain.errors import Rejected
from tickwright.domain.field_readers import Reader, bad, flag, lasting, one_of, read_fields, whole
from tickwright.domain.targets import FORMS_SHOWN, parse_target, remote_target
from tickwright.domain.time_texts import YEAR_MAX, format_duration, parse_instant, parse_rate

Allow = Callable[[str], None]
"""Refuses, by raising ``Rejected``, a destination to which no message could ever be sent."""
T = TypeVar("T")
Misfire = Literal["one", "all", "none"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
PRODUCT_CODES_MAX, PRODUCT_CODE_CHARS_MAX = 100, 100
CHUNK_ROWS_MIN = 100
CHUNK_ROWS_MAX = 100_000
MISFIRE_MAX_MAX = 1_000
ATTEMPTS_MAX = 100
GRACE_MAX = timedelta(days=7)
MISTAKES_MAX = 100
INVALID = "invalid_value"
SCHEDULE_FIELDS = (
    "type", "date_time_execution", "time_zone", "restartable", "restartable_unit", "restartable_unit_type", "cron",
)  # fmt: skip
"""The fields that decide when a batch runs: a change of one counts from the next occurrence on."""
SLOTS_SHOWN = 5
_PLACE = ("line", "column", "offset")
_PROGRAM_FIELDS = ("audience", "action", "release", "target", "timeout")
TIMEOUT_MIN, TIMEOUT_MAX = timedelta(seconds=1), timedelta(hours=6)
_TICK = timedelta(microseconds=1)
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?", re.ASCII)
_NO_SCHEDULE = "a MANUAL one is started by hand; leave this out, or make it AUTOMATIC"


class Mistake(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One mistake.

    Attributes:
        field: The field that it is about, with dots where it is inside of one; empty for the whole.
        code: Stable.
        line: Of a text in a language of its own, from 1 on; none where there is no place.
        column: The same.
        offset: In characters from the beginning of that text, from 0 on.
    """

    field: str
    code: str
    message: str
    line: int | None = None
    column: int | None = None
    offset: int | None = None


class Mistakes:
    """The mistakes of one definition; ``what`` is defined, for the error's code, such as ``campaign``."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.found: list[Mistake] = []

    def add(self, field: str, message: str, *, code: str = INVALID) -> None:
        """Add one."""
        self.found.append(Mistake(field=field, code=code, message=message))

    def add_error(self, error: Rejected, field: str) -> None:
        """Add what an error says of ``field``: each of its ``problems`` where it has some."""
        for problem in error.details.get("problems") or [error.details]:
            if isinstance(problem, str):
                path, _, message = problem.partition(": ")
                self.add(path, message, code=error.code)
                continue
            place = {name: problem[name] for name in _PLACE if name in problem}
            code = problem.get("code", error.code)
            message = problem.get("message", error.message.removeprefix(f"{field}: "))
            self.found.append(Mistake(field=field, code=code, message=message, **place))

    def attempt(self, field: str, read: Callable[..., T], *values: Any) -> T | None:
        """Return what ``read`` makes of the values; ``None``, and a mistake about ``field``, where it rejects them."""
        try:
            return read(*values)
        except Rejected as error:
            self.add_error(error, field)
            return None

    def has(self, field: str) -> bool:
        """Return whether one is about this field."""
        return any(mistake.field == field for mistake in self.found)

    def read(self, table: Mapping[str, Any], readers: Mapping[str, Reader], *, inside: str = "") -> dict[str, Any]:
        """Return the values that ``readers`` give; unknown fields and wrong values become mistakes."""
        texts: list[str] = []
        values = read_fields(table, readers, texts, where=inside)
        for text in texts:
            field, _, message = text.partition(": ")
            self.add(field.removeprefix("."), message)
        return values

    def raise_found(self) -> None:
        """Refuse the definition if it has a mistake.

        Raises:
            Rejected: ``invalid_<what>``, or the code that all mistakes have; with each in ``problems``, and the place
                of the first that has one. Permanent.
        """
        if not self.found:
            return
        found = self.found[:MISTAKES_MAX]
        codes = {mistake.code for mistake in found}
        code = found[0].code if len(codes) == 1 and INVALID not in codes else f"invalid_{self.what}"
        placed = next((mistake for mistake in found if mistake.line is not None), None)
        place = {} if placed is None else {name: getattr(placed, name) for name in _PLACE}
        problems = [msgspec.to_builtins(mistake) for mistake in found]
        raise Rejected(code, "\n".join(map(_line, found)), field=found[0].field, problems=problems, **place)


def _line(mistake: Mistake) -> str:
    place = "" if mistake.line is None else f"line {mistake.line}, column {mistake.column}: "
    return f"{mistake.field}: {place}{mistake.message}" if mistake.field else mistake.message


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The fields above, with defaults for those that a definition leaves out; ``date_time_execution`` is aware."""

    type: str
    date_time_execution: datetime | None = None
    time_zone: str = "UTC"
    restartable: bool = False
    restartable_unit: int | None = None
    restartable_unit_type: UnitType | None = None
    cron: str | None = None
    overlap: str = "skip"
    misfire: Misfire = "one"
    misfire_max: int = 100
    misfire_grace: timedelta = timedelta(minutes=1)
    product_codes: tuple[str, ...] = ()
    chunk_rows: int = 5_000
    rate: str | None = None
    attempts: int = 10
    on_finished: str | None = None

    def recurrence(self) -> Recurrence:
        """Return when it runs; errors as :class:`Recurrence`."""
        return recurrence_of(msgspec.structs.asdict(self))

    def for_execution(self) -> dict[str, Any]:
        """Return the settings that an execution is worked with."""
        count, unit_s = (None, 1) if self.rate is None else parse_rate(self.rate)
        kept = {name: getattr(self, name) for name in ("chunk_rows", "attempts", "on_finished")}
        return {**kept, "rate_per_s": None if count is None else count / unit_s}

    def document(self) -> dict[str, Any]:
        """Return every field as JSON has it; reading the document gives the same settings again."""
        document = msgspec.structs.asdict(self)
        if self.date_time_execution is not None:
            document["date_time_execution"] = self.date_time_execution.astimezone(ZoneInfo(self.time_zone)).isoformat()
        document["misfire_grace"] = format_duration(self.misfire_grace)
        document["product_codes"] = list(self.product_codes)
        return document


class Kind(NamedTuple):
    """A kind of batch: as the table has it, and its noun in codes, sentences and paths."""

    name: str
    noun: str

    @property
    def plural(self) -> str:
        """As in paths and in the actions of the audit trail."""
        return f"{self.noun}es" if self.noun.endswith("ch") else f"{self.noun}s"

    def subject(self, name: str) -> str:
        """Return the subject of one of them in the audit trail."""
        return f"{self.noun}:{name}"


CAMPAIGN, PROGRAM = Kind("campaign", "campaign"), Kind("program", "batch")


class Draft(NamedTuple):
    """A definition that has been checked; ``own`` are the fields that only its kind has."""

    settings: BatchSettings
    own: Mapping[str, Any]

    @property
    def document(self) -> dict[str, Any]:
        """The whole definition, as a version keeps it."""
        return {**self.settings.document(), **self.own}

    @property
    def definition(self) -> dict[str, Any]:
        """What an execution begins with."""
        return {**self.settings.for_execution(), **self.own}


def field_readers(allow: Allow) -> dict[str, Reader]:
    """Return the readers of the fields above; ``null`` reads as a field that is left out."""
    readers = {
        "type": one_of(*map(str, BatchType)),
        "date_time_execution": _first,
        "time_zone": _time_zone,
        "restartable": flag,
        "restartable_unit": whole(1, UNIT_MAX),
        "restartable_unit_type": one_of(*get_args(UnitType)),
        "cron": _cron,
        "overlap": one_of(*map(str, Overlap)),
        "misfire": one_of(*get_args(Misfire)),
        "misfire_max": whole(1, MISFIRE_MAX_MAX),
        "misfire_grace": lasting(timedelta(), GRACE_MAX),
        "product_codes": _product_codes,
        "chunk_rows": whole(CHUNK_ROWS_MIN, CHUNK_ROWS_MAX),
        "rate": _rate,
        "attempts": whole(1, ATTEMPTS_MAX),
        "on_finished": destination(allow),
    }
    return {name: _or_none(read) for name, read in readers.items()}


def settings_of(values: Mapping[str, Any], mistakes: Mistakes) -> BatchSettings | None:
    """Return settings from the values of fields; ``None``, and the reasons in ``mistakes``, where they are wrong.

    The fields of the kind are ignored. ``mistakes`` has those of single fields already.
    """
    fields = BatchSettings.__struct_fields__
    own = {name: value for name, value in values.items() if name in fields and value is not None}
    if "type" not in own and not mistakes.has("type"):
        mistakes.add("type", "missing; write MANUAL or AUTOMATIC")
    _localize(own, mistakes)
    if mistakes.found:
        return None
    settings = BatchSettings(**own)
    _check_schedule(settings, mistakes)
    return None if mistakes.found else settings


def read_program(fields: Mapping[str, Any], allow: Allow) -> Draft:
    """Return the definition of a program's batch, from arguments of ``@app.batch``, or of one for remote workers.

    With a time to run at it is ``AUTOMATIC``. A function decides instead of an expression, so audience and action are
    optional. With a ``target``, ``remote:POOL``, remote workers work on it, on each chunk for ``timeout`` at most.

    Raises:
        Rejected: ``invalid_batch``, or the code that all mistakes have, with every mistake. Permanent.
    """
    mistakes = Mistakes("batch")
    shared = {name: value for name, value in fields.items() if name not in _PROGRAM_FIELDS}
    timed = any(shared.get(name) for name in ("cron", "date_time_execution", "restartable"))
    shared.setdefault("type", "AUTOMATIC" if timed else "MANUAL")
    values = mistakes.read(shared, field_readers(allow))
    own: dict[str, Any] = {}
    if fields.get("audience") is not None:
        mistakes.attempt("audience", read_audience, fields["audience"])
        own["audience"] = fields["audience"]
    if fields.get("action") is not None:
        readers = {"action": destination(allow), "release": one_of("finished", "chunk")}
        action = mistakes.read({name: fields[name] for name in readers if fields.get(name) is not None}, readers)
        own["action"] = {"target": action.get("action"), "release": action.get("release", "finished")}
    elif fields.get("release") is not None:
        mistakes.add("release", "without an action nothing is released; name one, or leave this out")
    own |= _read_target(fields, mistakes)
    settings = settings_of(values, mistakes)
    mistakes.raise_found()
    assert settings is not None  # noqa: S101  without a mistake there are settings
    return Draft(settings, own)


def read_remote_batch(name: str, table: Any, problems: list[str], *, where: str) -> Draft | None:
    """Return the definition of a table ``[batches.NAME]``; ``None``, and every mistake in ``problems``."""
    if not NAME.fullmatch(name):
        problems.append(f"{where}: a name has 1 to 100 letters, digits, '_', '.' or '-', a letter or digit first")
    if not isinstance(table, Mapping):
        problems.append(f"{where}: write a table, [batches.NAME]")
        return None
    if table.get("target") is None:
        problems.append(f"{where}.target: missing; write remote:POOL. A program defines its batches with @app.batch")
    try:
        return read_program(table, lambda _: None)
    except Rejected as error:
        problems += [f"{where}.{text}" for text in error.message.splitlines()]
        return None


def _read_target(fields: Mapping[str, Any], mistakes: Mistakes) -> dict[str, Any]:
    readers = {"target": remote_target, "timeout": lasting(TIMEOUT_MIN, TIMEOUT_MAX)}
    found = mistakes.read({name: fields[name] for name in readers if fields.get(name) is not None}, readers)
    if "timeout" in found:
        found["timeout"] = format_duration(found["timeout"])
        if fields.get("target") is None:
            mistakes.add("timeout", "only with a target: a function of a program is not timed out")
    return found


def destination(allow: Allow) -> Reader:
    """Return a reader of destinations that ``allow`` does not refuse."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise bad(f"write a destination: {FORMS_SHOWN}")
        parse_target(value)
        allow(value)
        return value

    return read


def _or_none(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _localize(own: dict[str, Any], mistakes: Mistakes) -> None:
    """Put a local time of the first run into its time zone."""
    first = own.get("date_time_execution")
    if first is None or first.tzinfo is not None or mistakes.has("time_zone"):
        return
    zone = ZoneInfo(own.get("time_zone", "UTC"))
    at = first.replace(tzinfo=zone).astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None) != first:
        text = f"the clocks of {zone.key} skip {first.isoformat(timespec='minutes')}; write a time before or after it"
        mistakes.add("date_time_execution", text, code="invalid_datetime")
    own["date_time_execution"] = at


def _check_schedule(settings: BatchSettings, mistakes: Mistakes) -> None:
    if settings.type == "MANUAL":
        for name in ("date_time_execution", "cron", "restartable"):
            if getattr(settings, name):
                mistakes.add(name, _NO_SCHEDULE)
        return
    if settings.date_time_execution is None and settings.cron is None:
        mistakes.add("date_time_execution", "missing; say when it runs first, or give a cron expression")
    if settings.restartable and settings.cron is not None:
        mistakes.add("cron", "restartable or cron, one of them")
    for name in ("restartable_unit", "restartable_unit_type"):
        if settings.restartable and getattr(settings, name) is None:
            mistakes.add(name, "missing; a restartable one runs again every so many of a unit, such as 6 HOURS")
    if mistakes.found:
        return
    mistakes.attempt("cron" if settings.cron is not None else "restartable_unit", settings.recurrence)


def _first(value: Any) -> datetime:
    """Read an instant, or a local time without a zone. TOML has both as values of its own."""
    if isinstance(value, datetime):
        value = value.isoformat()
    if not isinstance(value, str):
        raise bad('write a time, such as "2026-11-01T09:00" or "2026-11-01T09:00:00+02:00"')
    if len(value) <= 40 and _LOCAL.fullmatch(value):
        try:
            local = datetime.fromisoformat(value)
        except ValueError:
            raise Rejected("invalid_datetime", "there is no such day or time") from None
        if not 1970 <= local.year < YEAR_MAX:
            raise Rejected("time_out_of_range", f"between 1970 and {YEAR_MAX - 1}")
        return local
    return parse_instant(value, field="duration")  # the prefix that read_fields removes from a message


def _time_zone(value: Any) -> str:
    if not isinstance(value, str):
        raise bad('write a name, such as "Europe/Kyiv"')
    return zone_of(value).key


def _cron(value: Any) -> str:
    if not isinstance(value, str):
        raise bad('write five fields, such as "0 9 * * 1-5"')
    return " ".join(value.split())


def _product_codes(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > PRODUCT_CODES_MAX:
        raise bad(f"write a list of at most {PRODUCT_CODES_MAX} codes")
    for code in value:
        if not isinstance(code, str) or not 0 < len(code) <= PRODUCT_CODE_CHARS_MAX or not code.isprintable():
            raise bad(f"each has 1 to {PRODUCT_CODE_CHARS_MAX} printable characters")
    return tuple(dict.fromkeys(value))


def _rate(value: Any) -> str:
    parse_rate(value)
    return str(value)


def document_of(row: Any) -> dict[str, Any]:
    """Return the definition of the version that a row came with."""
    document: dict[str, Any] = msgspec.json.decode(row["terms"])
    return document


def schedule_of(document: Mapping[str, Any]) -> list[Any]:
    """Return the values that decide when the batch of a definition runs."""
    return [document.get(field) for field in SCHEDULE_FIELDS]


def recurrence_of(row: Any) -> Recurrence:
    """Return when the batch of a row occurs.

    Raises:
        Rejected: The row was written by SQL and has no valid calendar. Permanent.
    """
    is_in_units = row["restartable"]
    unit, unit_type = (row["restartable_unit"], row["restartable_unit_type"]) if is_in_units else (None, None)
    return Recurrence(row["date_time_execution"], row["time_zone"], unit, unit_type, row["cron"])


def first_from(recurrence: Recurrence, now: datetime) -> datetime | None:
    """Return the first occurrence at or after ``now``."""
    return recurrence.next_after(now - _TICK)


def next_of(row: Any) -> datetime | None:
    """Return the first occurrence of a row's batch from now on; none where its calendar is invalid."""
    with suppress(Rejected):
        return first_from(recurrence_of(row), row["now"])
    return None


def next_slots(row: Any) -> list[datetime]:
    """Return the next five occurrences of a row's batch; none where it is manual or its calendar is invalid."""
    slots: list[datetime] = []
    at = None if row["type"] == "MANUAL" else next_of(row)
    while at is not None and len(slots) < SLOTS_SHOWN:
        slots.append(at)
        at = recurrence_of(row).next_after(at)
    return slots
