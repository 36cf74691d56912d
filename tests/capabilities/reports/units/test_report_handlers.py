"""Listeners and reports of a program: what each may be, and which settings of listeners a report uses."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

import tickwright
from tickwright import Rejected, ReportRequest, Row, Tickwright
from tickwright.capabilities.reports.handlers import ListenerRegistry, ReportRegistry, with_declared
from tickwright.capabilities.reports.schema import check_definition
from tickwright.ports.reports import Column, Dialect, Source

MINUTE = timedelta(minutes=1)


async def users(request: ReportRequest) -> AsyncIterator[Row]:
    """Yield one row."""
    yield {"id": request.report_id}


class Table:
    """A source with given rows."""

    name = "table"
    dialect: Dialect = "sqlite"

    def __init__(self, columns: Sequence[str], pieces: Sequence[Sequence[Sequence[Any]]]) -> None:
        self.columns, self._pieces = [Column(name, "") for name in columns], pieces
        self.asked: list[tuple[str, Mapping[str, Any], timedelta]] = []

    @asynccontextmanager
    async def query(
        self, sql: str, values: Mapping[str, Any], *, timeout: timedelta, within: str | None = None
    ) -> AsyncIterator["Table"]:
        """Return the rows, whatever the SQL."""
        assert within is None
        self.asked.append((sql, values, timeout))
        yield self

    async def __aiter__(self) -> AsyncIterator[Sequence[Sequence[Any]]]:
        """Yield piece by piece."""
        for piece in self._pieces:
            yield piece


def request(source: Source | None) -> ReportRequest:
    """Return a request with two conditions and a feed."""
    return ReportRequest(
        report_id=7, epoch=1, listener="users", type="t", stage=2, conditions={"country": "NL", "day": "a"},
        feed={"ids": [1], "day": "b"}, requester="ann", attempt=1, fence=3,
        deadline_at=datetime(2030, 1, 1, tzinfo=UTC), timeout=MINUTE, source=source,
    )  # fmt: skip


async def test_rows_of_a_source_come_one_by_one_with_their_names() -> None:
    """Conditions are values; a feed takes precedence over them, and arguments of the call over both."""
    table = Table(["id", "name"], [[(1, "a"), (2, "b")], [], [(3, "c")]])
    found = [row async for row in request(table).rows("SELECT …", country="BE", sql=1)]
    assert found == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}]
    assert table.asked == [("SELECT …", {"country": "BE", "day": "b", "ids": [1], "sql": 1}, MINUTE)]


async def test_rows_of_a_source_are_refused_to_a_listener_without_one() -> None:
    """The error has the remedy."""
    with pytest.raises(Rejected, match=r'@app\.listener\("users", source=…\)') as caught:
        await anext(aiter(request(None).rows("SELECT 1")))
    assert caught.value.code == "no_source"


def test_the_text_of_a_request_omits_its_source() -> None:
    """A request may be written to a log."""
    assert "source" not in repr(request(Table([], [])))


async def _no_rows(request: ReportRequest) -> None:
    """Yield none."""


def _plain(request: ReportRequest) -> list[Row]:
    return []


async def _two(request: ReportRequest, more: int) -> AsyncIterator[Row]:
    yield {}


async def _none() -> AsyncIterator[Row]:
    yield {}


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (_no_rows, "that yields rows"),
        (_plain, "that yields rows"),
        (_two, "takes the request, and nothing else"),
        (_none, "takes the request, and nothing else"),
    ],
)
def test_a_listener_takes_a_request_and_yields_rows(function: Callable[..., Any], remedy: str) -> None:
    """Anything else is refused before the first report is requested."""
    with pytest.raises(Rejected, match=remedy) as caught:
        Tickwright().listener("users")(function)
    assert caught.value.code == "invalid_listener"


def test_a_listener_with_more_arguments_may_have_them_bound() -> None:
    """By ``partial``, or by defaults."""
    app = Tickwright()
    filled = partial(_two, more=1)
    assert app.listener("users")(filled) is filled
    assert [one.name for one in app.registrations.of(ListenerRegistry).all()] == ["users"]


def test_a_wrong_listener_is_refused_with_every_mistake() -> None:
    """At import time; and so is a second one of the same name."""
    app = Tickwright()
    with pytest.raises(Rejected) as caught:
        app.listener("my users", source="a b", attempts=0, timeout="7h", columns={"id": "number"})(users)
    assert (caught.value.code, len(caught.value.details["problems"])) == ("invalid_listener", 5)
    assert app.listener("users")(users) is users
    with pytest.raises(Rejected) as caught:
        app.listener("users")(users)
    assert caught.value.code == "duplicate_listener"


def test_a_report_uses_the_programs_settings_of_its_listeners() -> None:
    """In either order of declaration; the report's own settings take precedence; a query is no listener's function."""
    app = Tickwright()
    calls = []

    @app.report(
        "joined",
        listeners={"users": {"timeout": "9s"}, "rates": {"source": "b", "sql": "SELECT 1"}, "other": {}},
        deadline=MINUTE,
        parameters={"country": "text"},
    )
    def joined() -> str:
        calls.append(1)
        return "SELECT * FROM users, rates, other"

    app.listener("users", source="plt_user", attempts=5, timeout="1m", columns={"id": "BIGINT"})(users)
    app.listener("rates", source="c", attempts=7)(users)
    [declared] = app.registrations.of(ReportRegistry).all()
    plan = check_definition(declared.name, with_declared(declared.table, app.registrations.of(ListenerRegistry)))
    found = {one.name: (one.kind, one.source, one.attempts, one.timeout_ms, one.columns) for one in plan.listeners}
    assert found == {
        "users": ("function", "plt_user", 5, 9_000, {"id": "BIGINT"}),
        "rates": ("sql", "b", 3, 60_000, {}),
        "other": ("function", None, 3, 60_000, {}),
    }
    assert (calls, plan.deadline_s, plan.merge) == ([1], 60, "SELECT * FROM users, rates, other")


def test_a_report_in_stages_names_listeners_only() -> None:
    """A list of names per stage; one listener needs no SQL."""
    app = Tickwright()
    app.report("a", stages=[["users"], ["rates"]], feeds={2: "SELECT 1 AS x"})(lambda: "SELECT 1")
    app.report("b", listeners=["users"])(lambda: None)
    app.listener("rates", attempts=2)(users)
    first, second = (
        check_definition(one.name, with_declared(one.table, app.registrations.of(ListenerRegistry)))
        for one in app.registrations.of(ReportRegistry).all()
    )
    assert [(one.name, one.stage, one.attempts) for one in first.listeners] == [("users", 1, 3), ("rates", 2, 2)]
    assert second.merge == "FROM users"


async def _asynchronous() -> str:
    return "SELECT 1"


def _with_argument(number: int) -> str:
    return "SELECT 1"


def test_a_wrong_report_is_refused_with_every_mistake() -> None:
    """At import time; its function takes nothing and returns SQL."""
    app = Tickwright()
    for function in (_asynchronous, _with_argument):
        with pytest.raises(Rejected, match="takes nothing") as caught:
            app.report("r", listeners=["users"])(function)  # type: ignore[type-var]
    with pytest.raises(Rejected) as caught:
        app.report("r", listeners=["users", "order"], deadline="soon", checks=0)(lambda: None)
    assert (caught.value.code, len(caught.value.details["problems"])) == ("invalid_report_type", 3)
    assert all(line.startswith("@app.report('r').") for line in caught.value.details["problems"])
    app.report("r", listeners=["users"])(lambda: None)
    with pytest.raises(Rejected) as caught:
        app.report("r", listeners=["users"])(lambda: None)
    assert caught.value.code == "duplicate_report"


def test_what_a_listener_needs_is_public() -> None:
    """``from tickwright import ReportRequest, Row``."""
    assert {"ReportRequest", "Row"} <= set(tickwright.__all__)
