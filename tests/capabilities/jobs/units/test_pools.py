"""Queues and pools: what settings say, which types a worker runs, and how slots are shared."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright import Job, Tickwright
from tickwright.capabilities.jobs.handlers import HandlerRegistry
from tickwright.capabilities.jobs.model import PRIORITY_FIRST, first_priority
from tickwright.capabilities.jobs.task_types import as_declared, read_task_type, request_of
from tickwright.capabilities.jobs.worker.pools import (
    SLOTS_MAX,
    WorkerScope,
    check_needs,
    check_queue,
    parse_needs,
    parse_queues,
    parse_types,
    read_scope,
)
from tickwright.capabilities.jobs.worker.queue_slots import SlotPools
from tickwright.domain.errors import Rejected
from tickwright.process.settings import load_settings

QUEUES = st.sampled_from(["a", "b", "c", "d"])
RESERVES = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(1, 40), max_size=3)


def test_the_slots_of_a_worker_are_the_sum() -> None:
    """Reserved and shared ones together; without queues there is no such number."""
    scope = read_scope(" critical:50, default:200,*:30")
    assert (dict(scope.queues), scope.shared, scope.slots) == ({"critical": 50, "default": 200}, 30, 280)
    assert read_scope().slots is None
    assert read_scope("*:7").slots == 7


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("critical", "'critical': write NAME:SLOTS"),
        ("critical:", "write NAME:SLOTS"),
        ("critical:-1", "write NAME:SLOTS"),
        ("critical:1.5", "write NAME:SLOTS"),
        ("critical:٣", "write NAME:SLOTS"),
        ("critical:0", f"critical: 1 to {SLOTS_MAX} slots"),
        ("critical:99999999999", f"critical: 1 to {SLOTS_MAX} slots"),
        ("a:60000,b:60000", f"at most {SLOTS_MAX} slots together"),
        ("critical:1,critical:2", "critical: there twice"),
        ("*:1,*:2", "*: there twice"),
        ("crit*:1", "the name of a queue has"),
        ("a b:1", "the name of a queue has"),
        (f"{'q' * 10_000}:1", "the name of a queue has"),
        ("a:1,,b:2", "nothing between two commas"),
        (":1", "'': the name of a queue has"),
    ],
)
def test_slots_that_are_no_slots_are_refused(text: str, wanted: str) -> None:
    """With what to write, in a short message."""
    with pytest.raises(Rejected) as refused:
        parse_queues(text)
    assert refused.value.code == "invalid_queues"
    assert wanted in refused.value.message
    assert len(refused.value.message) < 300


def test_all_mistakes_are_reported_at_once() -> None:
    """In the order of the text."""
    with pytest.raises(Rejected) as refused:
        parse_queues("a:0,b,c:1,c:2")
    assert [line.split(":")[0] for line in refused.value.message.split("; ")] == ["a", "'b'", "c"]


@pytest.mark.parametrize("text", ["*", "a*b", "a.*.*", "re?ort", "a,a", "", "x" * 10_000, "[a-z]"])
def test_patterns_of_types_have_one_star_at_their_end(text: str) -> None:
    """Other characters have no meaning here, and are refused instead of never matching."""
    with pytest.raises(Rejected) as refused:
        parse_types(text)
    assert refused.value.code == "invalid_types"


@pytest.mark.parametrize("text", ["gpu*", "gpu,gpu", "g pu", ",", "x" * 51])
def test_needs_are_names(text: str) -> None:
    """As queues and types."""
    with pytest.raises(Rejected) as refused:
        parse_needs(text)
    assert refused.value.code == "invalid_needs"


@pytest.mark.parametrize("queue", ["", "a" * 51, "a b", "*", "a\n", None, 5])
def test_the_queue_of_a_type_is_a_name(queue: object) -> None:
    """One of up to 50 characters."""
    with pytest.raises(Rejected) as refused:
        check_queue(queue)
    assert (refused.value.code, check_queue("critical")) == ("invalid_queue", "critical")


@pytest.mark.parametrize("needs", ["gpu", [1], ["a"] * 11, [""], ["g*"], {"gpu": 1}, None])
def test_the_needs_of_a_type_are_a_list_of_names(needs: object) -> None:
    """Up to ten."""
    with pytest.raises(Rejected) as refused:
        check_needs(needs)
    assert refused.value.code == "invalid_needs"


@pytest.mark.parametrize(
    ("scope", "served"),
    [
        (read_scope(), {"plain", "report.daily"}),
        (read_scope("default:1"), {"plain"}),
        (read_scope("bulk:1"), {"report.daily"}),
        (read_scope("bulk:1,*:1"), {"plain", "report.daily"}),
        (read_scope(types="report.*"), {"report.daily"}),
        (read_scope(types="report.daily,plai"), {"report.daily"}),
        (read_scope(needs="gpu"), {"train"}),
        (read_scope(needs="gpu,disk"), {"train", "render"}),
        (read_scope("default:1", types="r*", needs="gpu,disk"), {"render"}),
    ],
)
def test_which_types_a_worker_runs(scope: WorkerScope, served: set[str]) -> None:
    """Those of its queues, which fit its patterns, and whose needs it has; types without needs only without a list."""
    types = {
        "plain": ("default", set[str]()),
        "report.daily": ("bulk", set[str]()),
        "train": ("default", {"gpu"}),
        "render": ("default", {"gpu", "disk"}),
    }
    assert {name for name, (queue, needs) in types.items() if scope.serves(name, queue, needs)} == served


def test_workers_that_run_the_same_types_are_one_group() -> None:
    """The numbers of their slots do not matter; a worker without limits keeps the group of earlier releases."""
    assert read_scope("a:1,b:2").group() == read_scope("b:7,a:3").group()
    assert read_scope("a:1,*:2").group() == read_scope().group() == []
    assert read_scope("a:1").group() != read_scope("b:1").group()
    assert read_scope(needs="gpu").group() != read_scope(types="gpu").group()


@given(RESERVES, st.integers(0, 20), st.lists(st.tuples(QUEUES, st.booleans()), max_size=200))
def test_queues_never_have_more_slots_than_there_are(
    reserves: dict[str, int], shared: int, steps: list[tuple[str, bool]]
) -> None:
    """Whatever starts and ends: a reserve is free while its queue does not use it, and the sum is never exceeded."""
    pools = SlotPools(WorkerScope(reserves, shared))
    running = Counter[str]()
    for name, starts in steps:
        queue = pools.of(name)
        if starts and queue.free > 0:
            queue.take(name)
            running[name] += 1
        elif not starts and running[name]:
            queue.release(name)
            running[name] -= 1
        assert running.total() <= sum(reserves.values()) + shared
        assert sum(max(0, count - reserves.get(each, 0)) for each, count in running.items()) == pools.shared_taken
        for each, reserved in reserves.items():
            assert pools.of(each).free >= reserved - running[each]


@given(
    RESERVES,
    st.integers(0, 20),
    st.dictionaries(st.text("xyz", min_size=1, max_size=3), st.tuples(QUEUES, st.integers(0, 60), st.booleans())),
)
def test_a_claim_takes_no_more_of_a_queue_than_may_run_there(
    reserves: dict[str, int], shared: int, types: dict[str, tuple[str, int, bool]]
) -> None:
    """But for one job of each type, so that a claim finds its jobs; a type gets one wherever a slot is free for it."""
    pools = SlotPools(WorkerScope(reserves, shared))
    pools.limit_types(Counter(queue for queue, _, _ in types.values()))
    used = {name: count for name, (_, count, _) in types.items()}
    hot = {name for name, (_, _, is_hot) in types.items() if is_hot}
    queue_of = {name: queue for name, (queue, _, _) in types.items()}
    rows = pools.shares(used, queue_of, hot)
    taken = Counter[str]()
    for name, count in used.items():
        taken[queue_of[name]] += count
    over = sum(max(0, count - reserves.get(queue, 0)) for queue, count in taken.items())
    free = {queue: max(0, reserves.get(queue, 0) - taken[queue]) for queue in taken}
    assert all(count >= 0 for count in rows.values())
    assert sum(rows.values()) <= sum(free.values()) + max(0, shared - over) + len(types)
    for queue, left in free.items():
        mine = [name for name in types if queue_of[name] == queue]
        assert sum(rows[name] for name in mine) <= left + max(0, shared - over) + len(mine)
        if left and len(mine) == 1:
            assert rows[mine[0]] >= min(1, left)


@given(st.integers(1, 8), st.sets(st.integers(-100, 100), min_size=1, max_size=8), st.integers(0, 1000))
def test_each_priority_comes_first_beside_each_first_type(types: int, priorities: set[int], begin: int) -> None:
    """In as many fair claims as there are pairs: so no job waits for ever behind others, whatever comes in."""
    pairs = {
        (number % types, first_priority(number, priorities, types=types))
        for number in range(begin, begin + types * len(priorities) * 2)
    }
    assert pairs == {(first, priority) for first in range(types) for priority in priorities}
    assert first_priority(begin, (), types=types) == PRIORITY_FIRST


def test_a_file_and_a_decorator_name_the_queue_and_the_needs() -> None:
    """With the rules of REST, all mistakes at once; an unchanged file changes nothing."""
    problems: list[str] = []
    kind = read_task_type("train", {"target": "python:train", "queue": "bulk", "needs": ["gpu"]}, problems, where="x")
    assert (kind.queue, kind.needs, problems) == ("bulk", frozenset({"gpu"}), [])
    assert as_declared(kind) == kind
    assert (request_of(kind).queue, request_of(kind).needs) == ("bulk", ["gpu"])
    read_task_type("train", {"target": "python:train", "queue": "*", "needs": "gpu"}, problems, where="x")
    assert [line.split(":")[0] for line in problems] == ["x.queue", "x.needs"]

    app = Tickwright()

    @app.job("train", queue="bulk", needs=["gpu", "disk"])
    async def train(job: Job) -> None: ...

    defaults = app.registrations.of(HandlerRegistry).all()[0].defaults
    assert (defaults.queue, defaults.needs) == ("bulk", frozenset({"gpu", "disk"}))


def test_settings_list_all_mistakes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each variable, with its name."""
    for name, value in {"QUEUES": "a:0,b", "TYPES": "*", "NEEDS": "g pu", "THREADS": "0"}.items():
        monkeypatch.setenv(f"TICKWRIGHT_{name}", value)
    with pytest.raises(Rejected) as refused:
        load_settings()
    lines = refused.value.message.splitlines()[1:]
    assert sorted(line.split(":")[0].strip() for line in lines) == [
        f"TICKWRIGHT_{name}" for name in ("NEEDS", "QUEUES", "THREADS", "TYPES")
    ]
