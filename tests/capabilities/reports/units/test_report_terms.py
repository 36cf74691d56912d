"""Definitions of report types: one reader for JSON, TOML and keywords, every mistake at once, and back again."""

import tomllib
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from tickwright.capabilities.reports.plan import Listener, Parameter, Plan
from tickwright.capabilities.reports.schema import SqlChecks, check_definition, definition_of
from tickwright.domain.errors import Rejected

WHOLE = """
merge = "SELECT * FROM users JOIN withdrawals USING (user_id)"
format = "parquet"
bom = true
checks = 3
check_every = "90s"
deadline = "2h"
keep = "1d"
notify = "ops"
[parameters]
country = "text"
since = { type = "date", default = 2026-01-01 }
limit = { type = "integer", required = false }
[feeds]
2 = "SELECT list(user_id) AS user_ids FROM users"
[listeners.users]
source = "plt_user"
sql = "SELECT user_id FROM users WHERE country = :country"
attempts = 5
timeout = "1m"
columns = { user_id = "int8", day = "text" }
[listeners.withdrawals]
stage = 2
required = false
[listeners.rates]
stage = 2
service = true
"""


def problems_of(definition: Any, name: str = "t", checks: SqlChecks | None = None) -> list[str]:
    """Return what is wrong with a definition."""
    with pytest.raises(Rejected) as caught:
        check_definition(name, definition, where="t", checks=checks)
    assert caught.value.code == "invalid_report_type"
    found: list[str] = caught.value.details["problems"]
    return found


def test_a_definition_is_read_with_all_its_keys() -> None:
    """Every key of the documentation, in TOML."""
    plan = check_definition("withdrawals", tomllib.loads(WHOLE))
    assert plan == Plan(
        merge="SELECT * FROM users JOIN withdrawals USING (user_id)",
        format="parquet",
        bom=True,
        checks=3,
        check_every_s=90,
        deadline_s=7200,
        keep_s=86_400,
        notify="ops",
        parameters={
            "country": Parameter(),
            "since": Parameter(type="date", required=False, default="2026-01-01"),
            "limit": Parameter(type="integer", required=False),
        },
        feeds={2: "SELECT list(user_id) AS user_ids FROM users"},
        listeners=(
            Listener(
                name="users",
                kind="sql",
                source="plt_user",
                sql="SELECT user_id FROM users WHERE country = :country",
                attempts=5,
                timeout_ms=60_000,
                columns={"user_id": "BIGINT", "day": "VARCHAR"},
            ),
            Listener(name="withdrawals", kind="function", stage=2, required=False, timeout_ms=270_000),
            Listener(name="rates", kind="service", stage=2, timeout_ms=270_000),
        ),
    )


@pytest.mark.parametrize(
    "definition",
    [
        tomllib.loads(WHOLE),
        {"listeners": ["users"]},
        {"listeners": ("a", "b"), "merge": "SELECT 1", "parameters": {}},
        {"stages": [["a"], ["b", "c"], {"d": {"required": False}}], "merge": "SELECT 1"},
    ],
)
def test_the_definition_of_a_plan_is_read_as_the_same_plan(definition: Any) -> None:
    """PUT accepts what GET shows."""
    plan = check_definition("t", definition)
    assert check_definition("t", definition_of(plan)) == plan


def test_a_default_can_be_the_member_of_an_enumeration() -> None:
    """In a program's definition it is a text or a number, too; a boolean is no number."""

    class Country(StrEnum):
        NL = "nl"

    class Limit(IntEnum):
        MANY = 1000

    def definition(kind: str, default: Any) -> Any:
        return {"listeners": ["a"], "parameters": {"x": {"type": kind, "default": default}}}

    for kind, default, expected in (
        ("text", Country.NL, "nl"),
        ("integer", Limit.MANY, 1000),
        ("number", Limit.MANY, 1000),
    ):
        parameters = check_definition("t", definition(kind, default)).parameters
        assert parameters is not None
        assert parameters["x"].default == expected
    for kind in ("integer", "number"):
        assert any("whole number" in line or "a number" in line for line in problems_of(definition(kind, True)))


def test_one_listener_needs_no_merge() -> None:
    """The file has all of its rows, unchanged."""
    assert check_definition("t", {"listeners": ["users"]}).merge == "FROM users"


def test_stages_set_the_stage_of_each_listener() -> None:
    """Names are enough; without declared parameters every condition is accepted."""
    plan = check_definition("t", {"stages": [["a"], ["b", "c"]], "merge": "SELECT 1"})
    assert [(one.name, one.stage, one.kind) for one in plan.listeners] == [
        ("a", 1, "function"),
        ("b", 2, "function"),
        ("c", 2, "function"),
    ]
    assert plan.parameters is None


def test_every_mistake_is_named_at_once_with_its_remedy() -> None:
    """Names, keys, values and combinations."""
    definition = {
        "merg": "SELECT 1",
        "format": "xml",
        "checks": 0,
        "check_every": 60,
        "deadline": "1500ms",
        "keep": "1s",
        "notify": "a b",
        "parameters": {
            "1st": "text",
            "kind": "txt",
            "day": {"type": "date", "default": "today"},
            "must": {"required": True, "default": "x"},
            "ids": {"type": "list", "default": "x"},
            "odd": 3,
        },
        "feeds": {"1": "SELECT 1"},
        "listeners": {
            "order": {},
            "a.b": {},
            "epoch": {},
            "c": {"sql": "SELECT 1"},
            "d": {"service": True, "source": "x"},
            "e": {"attempts": 101, "timeout": "7h", "stage": 11, "columns": {"x": "BIGINT; DROP"}},
            "f": 3,
        },
    }
    found = problems_of(definition, name="a b")
    expected = [
        "t: a name has", "t.merg: unknown key; did you mean merge?", "t.format: one of csv, parquet",
        "t.checks: a whole", "t.check_every: write a duration", "t.deadline: whole seconds", "t.keep: between",
        "t.notify: a name has",
        "t.parameters.1st: a name has", "t.parameters.kind.type: one of text", "t.parameters.day.default: write a date",
        "t.parameters.must.required: a default", "t.parameters.ids.default: a list has none",
        't.parameters.odd: write its type, such as "text"', "t.feeds: 1: a stage from 2",
        "t.listeners.order: order is a word of SQL", "t.listeners.a.b: a listener's name has",
        "t.listeners.epoch: epoch is a field",
        "t.listeners.c.source: missing", "t.listeners.d.service: a service asks", "t.listeners.e.attempts: a whole",
        "t.listeners.e.timeout: between", "t.listeners.e.stage: a whole",
        "t.listeners.e.columns: 'BIGINT; DROP' is no type",
        "t.listeners.f: write a table",
    ]  # fmt: skip
    assert len(found) == len(expected), found
    for beginning in expected:
        assert any(line.startswith(beginning) for line in found), (beginning, found)


@pytest.mark.parametrize(
    ("definition", "beginning"),
    [
        ({}, "t.listeners: missing"),
        ({"listeners": ["a", "b"]}, "t.merge: missing"),
        ({"listeners": []}, "t.listeners: give at least one"),
        ({"listeners": ["a"], "stages": [["b"]]}, "t.stages: listeners or stages"),
        ({"stages": []}, "t.stages: write 1 to 10 lists"),
        ({"stages": [["a"], []]}, "t.stages: stage 2 has no listeners"),
        ({"stages": [{"a": {"stage": 2}}]}, "t.listeners.a.stage: stages say it already"),
        ({"listeners": ["a", "A"], "merge": "x"}, "t.listeners.A: for SQL this is the same name as a"),
        ({"stages": [["a"], ["a"]], "merge": "x"}, "t.listeners.a: duplicate"),
        ({"listeners": {"a": {"stage": 2}}}, "t: stage 1 has no listeners"),
        ({"listeners": ["a"], "feeds": {2: "x"}}, "t.feeds.2: there is no stage 2"),
        ({"listeners": ["a"], "feeds": {2: "x", "2": "y"}}, "t.feeds: 2: duplicate"),
        ({"listeners": [f"l{number}" for number in range(101)], "merge": "x"}, "t.listeners: at most 100"),
        ({"listeners": ["a"], "merge": "x" * 65_537}, "t.merge: at most 65536 bytes"),
        ({"listeners": ["a"], "merge": " "}, "t.merge: write one query"),
        ({"listeners": [1], "merge": "x"}, "t.listeners: a name is a text"),
        ({"listeners": ["a"], "parameters": {f"p{number}": "text" for number in range(101)}}, "t.parameters: at most"),
        ([], "t: write a table"),
    ],
)
def test_a_wrong_combination_is_refused(definition: Any, beginning: str) -> None:
    """Each mistake alone."""
    found = problems_of(definition)
    assert any(line.startswith(beginning) for line in found), found


def test_a_whole_definition_is_bounded() -> None:
    """Each query within its bound, all together above 256 KiB."""
    listeners = {f"l{number}": {"source": "s", "sql": "x" * 60_000} for number in range(5)}
    assert problems_of({"listeners": listeners, "merge": "x"}) == ["t: the whole definition has at most 262144 bytes"]


def _select(sql: str, listeners: Sequence[str]) -> None:
    if "bad" in sql:
        raise Rejected("invalid_sql", f"no SELECT over {', '.join(listeners)}")


def _values(sql: str) -> frozenset[str]:
    if "$1" in sql:
        raise Rejected("invalid_sql", "write a value as :name")
    return frozenset(word.removeprefix(":") for word in sql.split() if word.startswith(":"))


def _columns(sql: str) -> frozenset[str] | None:
    return None if "*" in sql else frozenset(sql.split()[1:])


CHECKS = SqlChecks(_select, _values, _columns)


def test_a_part_may_not_take_longer_than_its_report_waits_for_it() -> None:
    """The delayed check or the deadline would come before its timeout. A default timeout always fits."""
    definition: dict[str, Any] = {"listeners": {"a": {"timeout": "3m"}, "b": {}}, "merge": "x", "checks": 2}
    waits = "the report waits for 2m (2 checks of 1m, deadline 30m)"
    problems = [f"t.listeners.a.timeout: 3m, and {waits}; shorten it, or raise those"]
    assert problems_of({**definition, "check_every": "1m"}) == problems
    assert len(problems_of({**definition, "check_every": "1h", "deadline": "179s"})) == 1
    plan = check_definition("t", {**definition, "check_every": "90s", "deadline": "3m"})
    assert [one.timeout_ms for one in plan.listeners] == [180_000, 180_000]
    plan = check_definition("t", {"stages": [["a"], {"b": {"timeout": "1s"}}], "merge": "x", "deadline": "90s"})
    assert [one.timeout_ms for one in plan.listeners] == [90_000, 1_000]


def test_a_feed_does_not_replace_a_parameter() -> None:
    """A query that names it would get another value than the request's."""
    definition: dict[str, Any] = {
        "merge": "SELECT",
        "parameters": {"country": "text", "ids": "list"},
        "stages": [["a"], ["b"]],
        "feeds": {2: "SELECT ids other"},
    }
    problems = ["t.feeds.2: its column ids is a parameter, too; call one of them otherwise"]
    assert problems_of(definition, checks=CHECKS) == problems
    check_definition("t", {**definition, "feeds": {2: "SELECT *"}}, checks=CHECKS)
    del definition["parameters"]
    check_definition("t", definition, checks=CHECKS)


def test_sql_is_checked_with_the_parts_that_it_may_read() -> None:
    """The merge sees every part, a feed the parts of the stages before its own."""
    definition = {"stages": [["a"], ["b"], ["c"]], "merge": "bad", "feeds": {2: "bad", 3: "bad"}}
    assert problems_of(definition, checks=CHECKS) == [
        "t.merge: no SELECT over a, b, c",
        "t.feeds.2: no SELECT over a",
        "t.feeds.3: no SELECT over a, b",
    ]


def test_a_query_names_only_values_that_exist() -> None:
    """A condition, or a column of a feed of its or an earlier stage; some feeds show their columns only at run time."""
    one = {"source": "s", "sql": "SELECT :country :ids"}
    definition: dict[str, Any] = {
        "merge": "SELECT",
        "parameters": {"country": "text"},
        "listeners": {"a": one, "b": {**one, "stage": 2}, "c": {**one, "stage": 3}},
        "feeds": {2: "SELECT ids"},
    }
    assert problems_of(definition, checks=CHECKS) == ["t.listeners.a.sql: there is no value :ids; there are :country"]
    definition["listeners"]["a"] = {}
    check_definition("t", definition, checks=CHECKS)
    definition["feeds"] = {2: "SELECT *"}
    definition["listeners"]["b"] = {**definition["listeners"]["b"], "sql": "SELECT :anything"}
    check_definition("t", definition, checks=CHECKS)
    del definition["feeds"], definition["parameters"]
    check_definition("t", definition, checks=CHECKS)
    definition["listeners"]["b"] = {**definition["listeners"]["b"], "sql": "SELECT $1"}
    assert problems_of(definition, checks=CHECKS) == ["t.listeners.b.sql: write a value as :name"]
