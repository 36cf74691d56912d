"""100,000 due jobs each of an unknown, a paused and a saturated type: the good type's claim does not read them."""

from collections.abc import Iterator

import pytest

from capabilities.jobs.plans.test_job_plans import CLAIM, DUE, TABLE, claim_of, open_session
from kit.fix_plans import Planner
from tickwright.capabilities.jobs.model import ClaimRange

GOOD = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type)
SELECT now() - interval '1 minute', 'good' FROM generate_series(1, 1000)
"""
OTHERS = """
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, priority)
SELECT now() - interval '1 hour', (ARRAY['aaa.unknown', 'paused', 'zzz.saturated'])[1 + n % 3], n % 2
  FROM generate_series(1, 300000) AS n
"""


@pytest.fixture(scope="module")
def pages_alone_and_beside(module_url: str) -> Iterator[tuple[Planner, int]]:
    """A planner on all of them, and the cost of the good type's claim while its jobs were alone."""
    planner = Planner(module_url)
    open_session(planner)
    planner.run(GOOD)
    planner.prepare("claim", CLAIM)
    alone = planner.explain("claim", *claim_of(500, ClaimRange("good", 0))).blocks
    planner.run(OTHERS)
    yield planner, alone
    planner.close()


def test_the_good_types_claim_touches_its_own_range_only(pages_alone_and_beside: tuple[Planner, int]) -> None:
    """Jobs of other types cost nothing: they are other ranges of the index."""
    planner, alone = pages_alone_and_beside
    plan = planner.explain("claim", *claim_of(500, ClaimRange("good", 0)))
    assert plan.scans_of(TABLE) == {DUE, "tid"}
    assert plan.blocks <= alone * 1.3 + 50, f"{plan.blocks} pages beside the others, {alone} alone"


def test_a_claim_of_a_nearly_full_type_reads_only_what_it_may_take(pages_alone_and_beside: tuple[Planner, int]) -> None:
    """A saturated type with room for five rows is read for five rows, not for 100,000."""
    planner, alone = pages_alone_and_beside
    ranges = (ClaimRange("good", 0), ClaimRange("zzz.saturated", 0), ClaimRange("zzz.saturated", 1))
    plan = planner.explain("claim", *claim_of(5, *ranges))
    assert plan.blocks <= alone + 50, plan.text


def test_finding_an_unknown_priority_costs_a_probe(pages_alone_and_beside: tuple[Planner, int]) -> None:
    """The claim itself probes the gaps between known priorities: an empty gap costs one descent."""
    planner, _ = pages_alone_and_beside
    ranges = [ClaimRange("zzz.saturated", priority) for priority in range(-100, 100, 2)]
    plan = planner.explain("claim", *claim_of(1, *ranges))
    assert plan.scans_of(TABLE) <= {DUE, "tid"}
    assert plan.blocks < 12 * len(ranges), plan.blocks
