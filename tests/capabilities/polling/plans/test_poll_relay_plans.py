"""The poll relay reads and writes by index, however many rows wait, also with plans made on an empty table."""

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.polling.relay.batches import SQL

TABLE = "scheduler_outbox"
WAITING, BATCH, PKEY = "scheduler_outbox_waiting", "scheduler_outbox_batch", "scheduler_outbox_pkey"
FILL = """
INSERT INTO tickwright.poll_relays (shard) VALUES (0), (1);
INSERT INTO tickwright.scheduler_outbox (release_at, due_at, slot_id, partner_no, shard, ids, account_nos, external_ids)
SELECT at, at, 0, 1, 0, ARRAY[n], ARRAY[1], ARRAY['x']
  FROM (SELECT n, now() + (n - 300) * interval '1 second' AS at FROM generate_series(1, 40000) AS n) AS rows;
"""
QUEUE = """
INSERT INTO tickwright.partners (name) VALUES ('dhl');
INSERT INTO tickwright.poll_wheels VALUES (60, 600);
INSERT INTO tickwright.poll_slots (slot_id, interval_minutes, next_due_at) VALUES (600, 60, now());
INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids)
SELECT now() - (n + 100) * interval '1 minute', 600, partner_no, ARRAY[n], ARRAY[1], ARRAY['x']
  FROM generate_series(1, 20000) AS n, tickwright.partners;
"""
BATCHES = """
INSERT INTO tickwright.poll_batches
SELECT 0, n, 'polls', at, at, at, 1, '{0}', ARRAY[n], ARRAY[n] FROM (
  SELECT n, now() - (50000 - n) * interval '1 second' AS at FROM generate_series(1, 50000) AS n) AS batches;
INSERT INTO tickwright.poll_slices
       (due_at, slot_id, partner_no, interval_minutes, selected, shard, first_batch_no, last_batch_no)
SELECT date_trunc('minute', now()) - n * interval '1 minute', 0, 1, 120, 1, 0, n * 20, n * 20 + 30
  FROM generate_series(1, 1200) AS n;
"""
QUERIES = (
    "freeze",
    "read_frozen",
    "mark_published",
    "next_release_s",
    "move_to_queue",
    "drop_superseded",
    "drop_queued",
)


@pytest.fixture
def crowded_outbox(planner: Planner) -> Planner:
    """40,000 rows of a shard, 300 of them released; every plan was made while the table was empty."""
    arguments = {
        "freeze": "0, 1, 1",
        "mark_published": "0, 1, 'polls', 3, '{0}', '{1}', '{1}', 100",
        "move_to_queue": "0, 1",
    }
    arguments |= {"drop_superseded": "0, 1, 1", "drop_queued": "1, 1"}
    for name in QUERIES:
        planner.prepare(f"relay_{name}", SQL[name])
        planner.run(f"EXECUTE relay_{name} ({arguments.get(name, '0')})")
    planner.run(FILL)
    return planner


def test_freezing_reads_released_rows_only(crowded_outbox: Planner) -> None:
    """Bounded by the instant: the rows of the minutes to come are not touched."""
    plan = crowded_outbox.explain("relay_freeze", 0, 10_000, 10_000)
    assert plan.scans_of(TABLE) <= {WAITING, PKEY}, plan.text
    read = [node for node in plan.nodes if node.get("Index Name") == WAITING]
    assert sum(node["Actual Rows"] for node in read) <= 301, plan.text


def test_a_frozen_batch_is_read_and_marked_by_its_number(crowded_outbox: Planner) -> None:
    """What a mark costs depends on its batch, not on what waits."""
    crowded_outbox.run("EXECUTE relay_freeze (0, 10000, 10000)")
    read = crowded_outbox.explain("relay_read_frozen", 0)
    assert read.scans_of(TABLE) == {BATCH}, read.text
    mark = crowded_outbox.explain("relay_mark_published", 0, 1, "polls", 3, [0, 1], [5, 6], [7, 8], 100)
    assert mark.scans_of(TABLE) == {BATCH}, mark.text
    assert mark.scans_of("poll_slices") <= {"poll_slices_pkey"}, mark.text
    assert mark.scans_of("poll_reads") <= {"poll_reads_pkey"}, mark.text
    assert mark.scans_of("poll_batches") <= {"poll_batches_pkey"}, mark.text
    assert mark.blocks < 10_000, mark.text


def test_the_batches_of_a_slots_minute_are_found_by_their_numbers(crowded_outbox: Planner) -> None:
    """However many batches are kept: those of the slot's minute, and no others."""
    crowded_outbox.run(BATCHES)
    for table in ("poll_batches", "poll_slices"):
        crowded_outbox.run(f"ANALYZE tickwright.{table}")
    crowded_outbox.prepare("relay_find_batches", SQL["find_batches"])
    due = crowded_outbox.run("SELECT due_at FROM tickwright.poll_slices WHERE first_batch_no = 20000")[0][0]
    plan = crowded_outbox.explain("relay_find_batches", 0, f'"{due.isoformat()}"', 1, f'"{due.isoformat()}"', 200)
    assert plan.scans_of("poll_batches") == {"poll_batches_pkey"}, plan.text
    assert plan.scans_of("poll_slices") == {"poll_slices_pkey"}, plan.text
    assert plan.blocks < 100, plan.text


def test_the_next_release_is_one_row_of_the_index(crowded_outbox: Planner) -> None:
    """It runs five times a second, so it has to be cheap."""
    plan = crowded_outbox.explain("relay_next_release_s", 0)
    assert plan.scans_of(TABLE) == {WAITING}, plan.text
    assert plan.blocks < 10, plan.text


def test_moving_to_the_queue_touches_its_rows_only(crowded_outbox: Planner) -> None:
    """Without Kafka: found by the index of what waits, deleted by their ids."""
    plan = crowded_outbox.explain("relay_move_to_queue", 0, 100)
    assert plan.scans_of(TABLE) <= {WAITING, PKEY}, plan.text
    read = [node for node in plan.nodes if node.get("Index Name") == WAITING]
    assert sum(node["Actual Rows"] for node in read) <= 101, plan.text


def test_superseded_polls_are_searched_among_the_first_rows_only(crowded_outbox: Planner) -> None:
    """Before every batch: the rows that the batch may take, and no more."""
    plan = crowded_outbox.explain("relay_drop_superseded", 0, 200, 100)
    assert plan.scans_of(TABLE) <= {WAITING, PKEY}, plan.text
    read = [node for node in plan.nodes if node.get("Index Name") == WAITING]
    assert sum(node["Actual Rows"] for node in read) <= 201, plan.text
    assert plan.scans_of("poll_slots") <= {"poll_slots_pkey"}, plan.text


def test_the_queue_is_swept_by_partner_from_its_oldest_row(crowded_outbox: Planner) -> None:
    """Once a second: of each partner the oldest rows without an owner, however many wait."""
    crowded_outbox.run(QUEUE)
    plan = crowded_outbox.explain("relay_drop_queued", 1000, 500)
    assert plan.scans_of("poll_queue") <= {"poll_queue_waiting", "poll_queue_pkey"}, plan.text
    read = [node for node in plan.nodes if node.get("Index Name") == "poll_queue_waiting"]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in read) <= 1001, plan.text
    assert plan.scans_of("poll_slots") <= {"poll_slots_pkey"}, plan.text
