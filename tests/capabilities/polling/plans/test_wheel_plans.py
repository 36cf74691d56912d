"""What the corrector does with one slot reads that slot's trackers, however many others there are."""

from datetime import timedelta

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.polling.wheels.loops import SQL

TRACKERS = 60_000
FILL = f"""
INSERT INTO tickwright.polling_schedule_config (account_id) VALUES ('a');
INSERT INTO tickwright.partners (name) VALUES ('dhl');
INSERT INTO tickwright.poll_wheels VALUES (60, 0), (120, 60);
INSERT INTO tickwright.poll_slots (slot_id, interval_minutes, next_due_at, prev_due_at)
SELECT n, CASE WHEN n < 60 THEN 60 ELSE 120 END, now() + n * interval '1 min', now() + (n - 120) * interval '1 min'
  FROM generate_series(0, 179) AS n;
INSERT INTO tickwright.trackers (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
SELECT nextval('tickwright.tracker_ids'), now() - interval '1 day', now() + interval '60 days', 1,
       3600 + n * 7919 % 7200, 1, 'registered', 'X' || n
  FROM generate_series(1, {TRACKERS}) AS n;
"""
ARGUMENTS = {
    "end_aged": (100, 1000, "pg:test.events"),
    "level_bucket": (6000, 1, 5, 5940),
    "move_to_wheel": (100, [1], 60, 2000, 0),
}


PER_SLOT = TRACKERS // 120


@pytest.fixture
def wheels(planner: Planner) -> Planner:
    """Sixty thousand trackers of one wheel, five hundred to a slot."""
    planner.run(FILL)
    planner.run("VACUUM ANALYZE")
    return planner


@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_the_corrector_reads_the_trackers_of_its_slot_only(wheels: Planner, name: str) -> None:
    """They are found by place; in the order of ids the plan would read all trackers until it has enough."""
    wheels.prepare(name, SQL[name])
    plan = wheels.explain(name, *ARGUMENTS[name])
    assert "trackers_place" in plan.scans_of("trackers"), plan.text
    filtered = sum(node.get("Rows Removed by Filter", 0) for node in plan.nodes)
    assert filtered <= PER_SLOT, plan.text


def test_forgetting_a_slots_slices_reads_its_own_rows_only(planner: Planner) -> None:
    """Of a ledger of ten days and ten partners: a hundred minutes by the key, whatever the others are."""
    planner.run(FILL.partition("INSERT INTO tickwright.trackers")[0])
    planner.run(
        """INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected)
           SELECT now() - minute * interval '1 min', minute % 60, partner, 60, 1
             FROM generate_series(0, 14399) AS minute, generate_series(1, 10) AS partner"""
    )
    planner.run("VACUUM ANALYZE")
    planner.prepare("forget_slices", SQL["forget_slices"])
    [(last,)] = planner.run("SELECT max(due_at) FROM tickwright.poll_slices WHERE slot_id = 30")
    plan = planner.explain("forget_slices", 30, last, timedelta(days=3), 2000)
    assert plan.scans_of("poll_slices") == {"poll_slices_pkey"}, plan.text
    read = sum(
        node["Actual Rows"] * node["Actual Loops"]
        for node in plan.nodes
        if "poll_slices_pkey" in str(node.get("Index Name"))
    )
    assert read <= 5000, plan.text
