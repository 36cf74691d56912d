"""Unique jobs: the rule, what is equal, and what an answer says. Pure.

A rule chooses what makes two jobs of a type equal (``by``), in which states a job holds its arguments (``over``), for
how long after it was inserted (``period``), and what an equal job replaces of a pending one (``on_conflict``). The
database keeps who holds which arguments, by a digest that is computed here, from plain JSON. Plain SQL has the same
digest (``tickwright.unique_digest``); a test keeps the two equal. See ADR 0042.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import DurationText, format_duration, parse_duration

BY_MAX = 20
BY_CHARS_MAX = 200
PERIOD_MIN = timedelta(seconds=1)
PERIOD_MAX = timedelta(days=366)
STATES = ("pending", "processing", "completed", "failed", "cancelled")
PARTS = ("payload", "time", "priority")
"""What an equal job can replace. ``time`` is ``execute_at`` and ``expires_at``, and ends a back-off."""
_PATH = re.compile(r"[^.]+(\.[^.]+)*")
_EXPONENT_MAX = 20_000
_MISSING: Any = object()
State = Literal["pending", "processing", "completed", "failed", "cancelled"]
Part = Literal["payload", "time", "priority"]


class UniqueRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What makes a job unique: a job that is equal to one that holds its arguments is not inserted.

    ``by`` are names of arguments, also nested (`order.id`); without it all arguments count, with `[]` none. ``period``
    counts from the insertion of the job that holds them; without it, it holds them as long as it is in a state of
    ``over``. ``on_conflict`` is what an equal job replaces while the other one is pending; by default it is kept as it
    is.
    """

    by: Annotated[list[Annotated[str, Meta(min_length=1, max_length=BY_CHARS_MAX)]], Meta(max_length=BY_MAX)] | None = (
        None
    )
    period: DurationText | None = None
    over: Annotated[list[State], Meta(min_length=1, max_length=5)] = msgspec.field(
        default_factory=lambda: ["pending", "processing"]
    )
    on_conflict: Annotated[list[Part], Meta(max_length=3)] | Literal["keep"] = "keep"


@dataclass(frozen=True, kw_only=True)
class Unique:
    """What makes a job unique. An equal job is not inserted: the existing one is kept, or takes over parts of it.

    ::

        Unique(by=("customer_id",), period="15m", over=("pending", "processing", "completed"))  # throttle
        Unique(by=("document",), over=("pending",), on_conflict=("time", "payload"))             # debounce
        Unique(by=())                                                                            # singleton

    Attributes:
        by: Names of arguments; ``order.id`` is nested. ``None``: all arguments; ``()``: none, one job of the type. A
            missing argument and ``None`` differ; ``1`` and ``1.0`` do not.
        period: A job holds its arguments for so long from its insertion, 1 s to 366 days; ``None``: as long as it is in
            one of the states ``over``, in an ended one for seven days.
        over: The states in which a job holds its arguments: ``pending``, ``processing``, ``completed``, ``failed``,
            ``cancelled``.
        on_conflict: ``"keep"``, or what an equal job replaces of a pending one: ``payload``, ``time``, ``priority``. A
            job that is processing or has ended is never changed.

    Raises:
        Rejected: ``invalid_unique``. Permanent.
    """

    by: Sequence[str] | None = None
    period: str | timedelta | None = None
    over: Sequence[str] = ("pending", "processing")
    on_conflict: str | Sequence[str] = "keep"

    def __post_init__(self) -> None:
        values = {
            "by": None if self.by is None else _names("by", self.by),
            "period": _period(self.period),
            "over": _chosen("over", self.over, STATES),
            "on_conflict": _chosen("on_conflict", () if self.on_conflict == "keep" else self.on_conflict, PARTS)
            or "keep",
        }
        if not values["over"]:
            raise _invalid("over", f"at least one state of {', '.join(STATES)}")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def replaces(self) -> tuple[str, ...]:
        """What an equal job replaces of a pending one."""
        return () if self.on_conflict == "keep" else tuple(self.on_conflict)

    def check_names(self, known: Sequence[str]) -> None:
        """Refuse names that are no arguments of a handler. Raises ``Rejected`` (``invalid_unique``): permanent."""
        for path in self.by or ():
            if path.partition(".")[0] not in known:
                raise _invalid("by", f"the handler has no argument {path!r}; it has {', '.join(known) or 'none'}")

    def stored(self) -> dict[str, Any]:
        """Return the rule as the database stores it."""
        period = None if self.period is None else _as_duration(self.period).total_seconds()
        by = None if self.by is None else list(self.by)
        return {"by": by, "period_s": period, "over": list(self.over), "on_conflict": list(self.replaces)}

    def shown(self) -> UniqueRequest:
        """Return the rule as REST shows and takes it."""
        period = None if self.period is None else format_duration(_as_duration(self.period))
        by: Any = None if self.by is None else list(self.by)
        over: Any = list(self.over)
        replaces: Any = list(self.replaces)
        return UniqueRequest(by=by, period=period, over=over, on_conflict=replaces or "keep")


def read_unique(value: Any) -> Unique:
    """Return the rule of a table, of JSON or of an object. Raises ``Rejected`` (``invalid_unique``): permanent."""
    if isinstance(value, Unique):
        return value
    if not isinstance(value, Mapping):
        raise Rejected("invalid_unique", 'unique: write { by = ["customer_id"], period = "15m" }', field="unique")
    strange = sorted(value.keys() - {"by", "period", "over", "on_conflict"})
    if strange:
        text = f"unique: unknown part {strange[0]!r}; allowed: by, period, over, on_conflict"
        raise Rejected("invalid_unique", text, field="unique")
    return Unique(**value)


def unique_of(stored: str | None) -> Unique | None:
    """Return the rule in a row."""
    if stored is None:
        return None
    rule = msgspec.json.decode(stored)
    period = None if rule["period_s"] is None else timedelta(seconds=rule["period_s"])
    return Unique(by=rule["by"], period=period, over=rule["over"], on_conflict=rule["on_conflict"] or "keep")


def digest_of_arguments(task_type: str, payload: str, by: Sequence[str] | None) -> bytes:
    """Return what is equal for two jobs: 32 bytes, from the type and the chosen arguments of a plain payload.

    Raises:
        Rejected: ``invalid_unique``: a number has thousands of digits, or there are too many levels. Permanent.
    """
    try:
        values = json.loads(payload, parse_int=Decimal, parse_float=Decimal)
        if by is not None:
            values = {path: found for path in by if (found := _at(values, path)) is not _MISSING}
        names = None if by is None else sorted(by)
        return sha256(_canonical({"type": task_type, "by": names, "values": values}).encode()).digest()
    except RecursionError:
        raise _invalid("by", "the arguments have too many levels of objects and arrays") from None


def _at(value: Any, path: str) -> Any:
    for step in path.split("."):
        value = value.get(step, _MISSING) if isinstance(value, dict) else _MISSING
    return value


def _canonical(value: Any) -> str:
    match value:
        case dict():
            return "{" + ",".join(f"{_text(name)}:{_canonical(value[name])}" for name in sorted(value)) + "}"
        case list():
            return "[" + ",".join(map(_canonical, value)) + "]"
        case Decimal():
            return _number(value)
        case _:
            return _text(value)


def _number(value: Decimal) -> str:
    """Return the one spelling of a number that PostgreSQL has for it as well."""
    if not value:
        return "0"
    if not -_EXPONENT_MAX <= value.adjusted() <= _EXPONENT_MAX:
        raise _invalid("by", "a number of the arguments has thousands of digits")
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


_text = json.JSONEncoder(ensure_ascii=False).encode


def _period(value: Any) -> timedelta | None:
    if value is None:
        return None
    period = _as_duration(value)
    if not PERIOD_MIN <= period <= PERIOD_MAX:
        raise _invalid("period", f"{format_duration(PERIOD_MIN)} to {PERIOD_MAX.days} days")
    return period


def _as_duration(value: str | timedelta) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise _invalid("period", 'write a duration with its unit, such as "15m"')
    try:
        return parse_duration(value, field="period")
    except Rejected as error:
        raise _invalid("period", error.message.removeprefix("period: ")) from None


def _names(part: str, value: Any) -> tuple[str, ...]:
    names = _texts(part, value)
    if len(names) > BY_MAX or not all(_PATH.fullmatch(name) and len(name) <= BY_CHARS_MAX for name in names):
        text = f"at most {BY_MAX} different names of 1 to {BY_CHARS_MAX} characters, such as customer_id or order.id"
        raise _invalid(part, text)
    return names


def _chosen(part: str, value: Any, known: Sequence[str]) -> tuple[str, ...]:
    names = _texts(part, value)
    for name in names:
        if name not in known:
            keep = '"keep", or ' if part == "on_conflict" else ""
            raise _invalid(part, f"{name!r} is unknown; write {keep}some of {', '.join(known)}")
    return names


def _texts(part: str, value: Any) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else (None,)
    if not all(isinstance(one, str) for one in given) or len(set(given)) < len(given):
        raise _invalid(part, "write a list of different names")
    return given


def _invalid(part: str, text: str) -> Rejected:
    return Rejected("invalid_unique", f"unique.{part}: {text}", field=f"unique.{part}")
