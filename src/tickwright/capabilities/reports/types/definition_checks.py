"""What can be wrong with a definition as a whole, when each of its words is right for itself.

Names that are the same for SQL, stages with gaps, feeds for nobody, queries that ask for values which nobody gives, and
SQL that is none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from tickwright.capabilities.reports.types.plan import Listener, Plan
from tickwright.domain.durations import format_duration
from tickwright.domain.errors import Rejected


class SqlChecks(NamedTuple):
    """Who understands SQL.

    Attributes:
        select: Raises ``Rejected`` unless a text is one SELECT; it is told the names of the tables that there are.
        placeholders: Returns the names of a query's values; raises ``Rejected`` unless its text is one query.
        columns: Returns the names of a SELECT's columns; ``None`` where only running it would tell.
    """

    select: Callable[[str, Sequence[str]], None]
    placeholders: Callable[[str], frozenset[str]]
    columns: Callable[[str], frozenset[str] | None]


def check_whole(plan: Plan, problems: list[str], *, where: str, checks: SqlChecks | None) -> None:
    """Add to ``problems`` what is wrong with ``plan``, each with its remedy."""
    before = len(problems)
    _check_names(plan.listeners, problems, where=where)
    _check_stages(plan, problems, where=where)
    _check_timeouts(plan, problems, where=where)
    if checks is None or len(problems) > before:
        return
    _check_select(plan, problems, checks, where=where)
    if len(problems) == before:
        _check_feeds(plan, problems, checks, where=where)
        _check_values(plan, problems, checks, where=where)


def _check_names(listeners: Iterable[Listener], problems: list[str], *, where: str) -> None:
    seen: dict[str, str] = {}
    for one in listeners:
        first = seen.setdefault(one.name.lower(), one.name)
        if first != one.name:
            problems.append(f"{where}.listeners.{one.name}: for SQL this is the same name as {first}")
    names = [one.name for one in listeners]
    problems += [f"{where}.listeners.{name}: stands twice" for name in sorted({n for n in names if names.count(n) > 1})]


def _check_stages(plan: Plan, problems: list[str], *, where: str) -> None:
    stages = {one.stage for one in plan.listeners}
    problems += [
        f"{where}: nobody is in stage {stage}; stages have no gaps"
        for stage in range(1, plan.stages)
        if stage not in stages
    ]
    problems += [
        f"{where}.feeds.{stage}: there is no stage {stage}; the last one is {plan.stages}"
        for stage in plan.feeds
        if stage > plan.stages
    ]


def _check_timeouts(plan: Plan, problems: list[str], *, where: str) -> None:
    """A part that may take longer than anybody waits for it would be given up while it is brought as it should be."""
    waits, every = format_duration(plan.waits), format_duration(timedelta(seconds=plan.check_every_s))
    problems += [
        f"{where}.listeners.{one.name}.timeout: {format_duration(one.timeout)}, and the report waits for {waits} "
        f"({plan.checks} checks of {every}, deadline {format_duration(timedelta(seconds=plan.deadline_s))}); "
        "shorten it, or raise those"
        for one in plan.listeners
        if one.timeout > plan.waits
    ]


def _check_select(plan: Plan, problems: list[str], checks: SqlChecks, *, where: str) -> None:
    texts = [("merge", plan.merge, plan.stages + 1)]
    texts += [(f"feeds.{stage}", sql, stage) for stage, sql in sorted(plan.feeds.items())]
    for word, sql, stage in texts:
        try:
            checks.select(sql, [one.name for one in plan.listeners if one.stage < stage])
        except Rejected as error:
            problems.append(f"{where}.{word}: {error.message}")


def _check_values(plan: Plan, problems: list[str], checks: SqlChecks, *, where: str) -> None:
    """Each query's values are conditions, or columns of a feed of its stage or of one before it."""
    known: set[str] | None = None if plan.parameters is None else set(plan.parameters)
    fed = {stage: checks.columns(sql) for stage, sql in plan.feeds.items()}
    for one in sorted(plan.listeners, key=lambda one: one.stage):
        if one.sql is None:
            continue
        given = _with_feeds(known, fed, one.stage)
        try:
            asked = checks.placeholders(one.sql)
        except Rejected as error:
            problems.append(f"{where}.listeners.{one.name}.sql: {error.message}")
            continue
        problems += [
            f"{where}.listeners.{one.name}.sql: nobody gives :{name}; there are {_listed(given)}"
            for name in sorted(asked - given if given is not None else ())
        ]


def _check_feeds(plan: Plan, problems: list[str], checks: SqlChecks, *, where: str) -> None:
    """A feed's column that is a parameter as well would be asked for with another value than the request's."""
    for stage, sql in sorted(plan.feeds.items()):
        twice = (checks.columns(sql) or frozenset()) & (plan.parameters or {}).keys()
        problems += [
            f"{where}.feeds.{stage}: its column {name} is a parameter, too; call one of them otherwise"
            for name in sorted(twice)
        ]


def _with_feeds(known: set[str] | None, fed: Mapping[int, frozenset[str] | None], stage: int) -> set[str] | None:
    """Return the values that there are for sure in a stage; ``None`` where nobody can say."""
    for columns in (columns for first, columns in fed.items() if first <= stage):
        known = None if known is None or columns is None else known | columns
    return known


def _listed(names: set[str] | None) -> str:
    return ", ".join(f":{name}" for name in sorted(names or ()))[:500] or "no values: add it to the parameters"
