"""What is said of every kind of batch: when it runs, and how it is worked; read from JSON, TOML or keyword arguments.

::

    type = "AUTOMATIC"                        # or MANUAL: somebody starts it
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
    on_finished = "https://…"                 # hears of the end, finished or failed

A local time that the clocks skip is refused; of one that comes twice the first is meant. Every mistake is
named at once.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec

from tickwright.capabilities.batches.definitions.problems import Problems
from tickwright.domain.errors import Rejected
from tickwright.domain.recurrence import UNIT_MAX, Recurrence, UnitType
from tickwright.domain.targets import parse_target
from tickwright.domain.time_texts import YEAR_MAX, format_duration, parse_instant, parse_rate
from tickwright.domain.wallclock import zone_of
from tickwright.domain.wording import Reader, bad, flag, lasting, one_of, whole

BatchType = Literal["MANUAL", "AUTOMATIC"]
Overlap = Literal["skip", "queue", "replace"]
Misfire = Literal["one", "all", "none"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
PRODUCT_CODES_MAX, PRODUCT_CODE_CHARS_MAX = 100, 100
CHUNK_ROWS_MIN, CHUNK_ROWS_MAX = 100, 100_000
MISFIRE_MAX_MAX = 1_000
ATTEMPTS_MAX = 100
GRACE_MAX = timedelta(days=7)
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?", re.ASCII)
_NO_SCHEDULE = "a MANUAL one is started by hand; leave this out, or make it AUTOMATIC"


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What was said, with the defaults for what was not.

    Attributes:
        date_time_execution: Aware; the first run.
        rate: As it was written; :meth:`settings` has it per second.
    """

    type: BatchType
    date_time_execution: datetime | None = None
    time_zone: str = "UTC"
    restartable: bool = False
    restartable_unit: int | None = None
    restartable_unit_type: UnitType | None = None
    cron: str | None = None
    overlap: Overlap = "skip"
    misfire: Misfire = "one"
    misfire_max: int = 100
    misfire_grace: timedelta = timedelta(minutes=1)
    product_codes: tuple[str, ...] = ()
    chunk_rows: int = 5_000
    rate: str | None = None
    attempts: int = 10
    on_finished: str | None = None

    def recurrence(self) -> Recurrence:
        """Return when it runs.

        Raises:
            Rejected: As :class:`Recurrence` says. Permanent.
        """
        return Recurrence(
            first_at=self.date_time_execution,
            time_zone=self.time_zone,
            unit=self.restartable_unit if self.restartable else None,
            unit_type=self.restartable_unit_type if self.restartable else None,
            cron=self.cron,
        )

    def settings(self) -> dict[str, Any]:
        """Return what whoever works on an execution is told beside its kind's own words."""
        count, unit_s = (None, 1) if self.rate is None else parse_rate(self.rate)
        return {
            "chunk_rows": self.chunk_rows,
            "rate_per_s": None if count is None else count / unit_s,
            "attempts": self.attempts,
            "on_finished": self.on_finished,
        }

    def words(self) -> dict[str, Any]:
        """Return these terms in the words above, as JSON has them: what is read from them is the same again."""
        words = msgspec.structs.asdict(self)
        if self.date_time_execution is not None:
            words["date_time_execution"] = self.date_time_execution.astimezone(ZoneInfo(self.time_zone)).isoformat()
        words["misfire_grace"] = format_duration(self.misfire_grace)
        words["product_codes"] = list(self.product_codes)
        return words


def terms_of(values: Mapping[str, Any], problems: Problems) -> Terms | None:
    """Return terms from the values of words; ``None``, and what is wrong with the whole in ``problems``.

    Args:
        values: By word; words of the kind itself are left alone.
        problems: Has the mistakes of single words already.
    """
    own = {name: value for name, value in values.items() if name in Terms.__struct_fields__ and value is not None}
    if "type" not in own and not problems.about("type"):
        problems.add("type", "missing; write MANUAL or AUTOMATIC")
    _place(own, problems)
    if problems.found:
        return None
    terms = Terms(**own)
    _check_schedule(terms, problems)
    return None if problems.found else terms


def _place(own: dict[str, Any], problems: Problems) -> None:
    """Put a local time of the first run into its time zone."""
    first = own.get("date_time_execution")
    if first is None or first.tzinfo is not None or problems.about("time_zone"):
        return
    zone = ZoneInfo(own.get("time_zone", "UTC"))
    at = first.replace(tzinfo=zone).astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None) != first:
        text = f"the clocks of {zone.key} skip {first.isoformat(timespec='minutes')}; write a time before or after it"
        problems.add("date_time_execution", text, code="invalid_datetime")
    own["date_time_execution"] = at


def _check_schedule(terms: Terms, problems: Problems) -> None:
    if terms.type == "MANUAL":
        said = {"date_time_execution": terms.date_time_execution, "cron": terms.cron, "restartable": terms.restartable}
        for name, value in said.items():
            if value:
                problems.add(name, _NO_SCHEDULE)
        return
    if terms.date_time_execution is None and terms.cron is None:
        problems.add("date_time_execution", "missing; say when it runs first, or give a cron expression")
    if terms.restartable and terms.cron is not None:
        problems.add("cron", "restartable or cron, one of them")
    for name in ("restartable_unit", "restartable_unit_type"):
        if terms.restartable and getattr(terms, name) is None:
            problems.add(name, "missing; a restartable one runs again every so many of a unit, such as 6 HOURS")
    if problems.found:
        return
    try:
        terms.recurrence()
    except Rejected as error:
        problems.of(error, "cron" if terms.cron is not None else "restartable_unit")


def _first(value: Any) -> datetime:
    """An instant, or a local time that is not placed yet. TOML has both as values of its own."""
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
    return parse_instant(value, field="duration")


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
    if not all(
        isinstance(code, str) and 0 < len(code) <= PRODUCT_CODE_CHARS_MAX and code.isprintable() for code in value
    ):
        raise bad(f"each has 1 to {PRODUCT_CODE_CHARS_MAX} printable characters")
    return tuple(dict.fromkeys(value))


def _rate(value: Any) -> str:
    parse_rate(value)
    return str(value)


def destination(allow: Any) -> Reader:
    """Return a reader of destinations that ``allow`` refuses by raising."""

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise bad('write a destination, such as "https://…", "amqp:EXCHANGE/KEY", "kafka:TOPIC" or "python:NAME"')
        parse_target(value)
        allow(value)
        return value

    return read


def or_none(read: Reader) -> Reader:
    """Return a reader that takes ``null`` as a word that is left out."""
    return lambda value: None if value is None else read(value)


def words_for(allow: Any) -> dict[str, Reader]:
    """Return the readers of the words above.

    Args:
        allow: Refuses a destination that could never be sent to.
    """
    readers = {
        "type": one_of(*get_args(BatchType)),
        "date_time_execution": _first,
        "time_zone": _time_zone,
        "restartable": flag,
        "restartable_unit": whole(1, UNIT_MAX),
        "restartable_unit_type": one_of(*get_args(UnitType)),
        "cron": _cron,
        "overlap": one_of(*get_args(Overlap)),
        "misfire": one_of(*get_args(Misfire)),
        "misfire_max": whole(1, MISFIRE_MAX_MAX),
        "misfire_grace": lasting(timedelta(), GRACE_MAX),
        "product_codes": _product_codes,
        "chunk_rows": whole(CHUNK_ROWS_MIN, CHUNK_ROWS_MAX),
        "rate": _rate,
        "attempts": whole(1, ATTEMPTS_MAX),
        "on_finished": destination(allow),
    }
    return {name: or_none(read) for name, read in readers.items()}
