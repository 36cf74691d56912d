"""An expression on an audience: the source and this process select the same clients, in every kind of source."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path

import pytest

from kit.audiences import KINDS, AudienceWorld, audience_world
from tickwright.capabilities.batches.expressions import compile_expression
from tickwright.ports.batches import Judge, SqlFilter
from tickwright.ports.reports import Dialect

LOAN = 'client.age > 25 && client.income > 3000 && client.country == "UK"'
EXPRESSIONS = [
    LOAN,
    'client.country in ["UK", "uk", ""] || !client.vip',
    'client.since < now - duration("24h") && client.country.startsWith("U")',
    "client.income <= 3000.5 ? client.vip : client.age != 26",
    'client.country > "DE" && client.country != "Ä"',
]
ROWS = [
    (1, 26, "3000.01", "UK", True, "2026-01-29 12:00:00+00"),
    (2, 26, "3000", "UK", False, "2026-01-31 12:00:00+00"),
    (3, 25, "9000", "UK", None, None),
    (4, None, "9000", "UK", True, "2020-02-29 00:00:00+00"),
    (5, 70, None, None, False, None),
    (6, 40, "5000", "uk", None, "1969-12-31 23:59:59+00"),
    (7, 40, "5000", "Ä", True, "2026-01-30 12:00:00+00"),
    (8, 40, "5000", "", False, "2026-01-30 11:59:59+00"),
]


@pytest.fixture(params=KINDS)
async def world(
    request: pytest.FixtureRequest, tmp_path: Path, empty_database_url: str
) -> AsyncIterator[AudienceWorld]:
    """The clients in each kind of source."""
    async with audience_world(request.param, tmp_path, empty_database_url) as made:
        columns = {"id": "bigint", "age": "integer", "income": "numeric(12,2)", "country": "text", "vip": "boolean"}
        await made.fill({**columns, "since": "timestamptz"}, ROWS)
        yield made


class OneByOne:
    """An expression without SQL: every client is judged in this process."""

    def __init__(self, judge: Judge) -> None:
        self.fields, self.judge = judge.fields, judge.judge

    def sql(self, dialect: Dialect, column: Callable[[str], str], now: datetime) -> SqlFilter | None:
        """Return no SQL."""
        del dialect, column, now
        return None


@pytest.mark.matrix
@pytest.mark.parametrize("text", EXPRESSIONS)
async def test_both_ways_select_the_same(world: AudienceWorld, text: str) -> None:
    """In ranges and in a dry run; missing ones are counted alike."""
    fields = {"age": "int", "income": "double", "country": "string", "vip": "bool", "since": "timestamp"}
    terms = world.terms(fields=fields)
    judge = compile_expression(text, terms.types)
    there = await world.everything(terms, 3, judge)
    here = await world.everything(terms, 3, OneByOne(judge))
    assert [(sorted(one.actions), one.result) for one in there] == [(sorted(one.actions), one.result) for one in here]
    selected = sum(one.result.selected for one in here)
    for way in (judge, OneByOne(judge)):
        found = await world.count(terms, way)
        assert (found.members, found.selected, found.missing) == (8, selected, sum(one.result.missing for one in here))
    assert 0 < selected < 8
    if text == LOAN:
        assert [action.client_id for one in here for action in one.actions] == ["1"]
