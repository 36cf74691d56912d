"""A consumer's statements read by index: neither other partners' waiting polls nor other groups are scanned."""

from collections.abc import Iterator

import pytest

from kit.fix_plans import Planner
from tickwright.capabilities.polling.consumer import queue as poll_queue
from tickwright.capabilities.polling.consumer import result_writer
from tickwright.partners import contract

FILL = """
INSERT INTO tickwright.partners (name) SELECT 'p' || n FROM generate_series(1, 20) AS n;
INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids, owner)
SELECT now() - n * interval '1 second', n / 60, p, ARRAY[n], ARRAY[1], ARRAY['x'], CASE WHEN n % 50 = 0 THEN 9 END
  FROM generate_series(1, 2000) AS n, generate_series(1, 20) AS p;
INSERT INTO tickwright.poll_done (slot_id, due_at, partner_no, done_at, ids)
SELECT n / 60, date_trunc('second', now()) - n * interval '1 second', p, now(), ARRAY[n]
  FROM generate_series(1, 2000) AS n, generate_series(1, 20) AS p;
INSERT INTO tickwright.workers (id, name, roles, version, lease_until)
VALUES (7, 'w', '{}', '0', now() + interval '1 h');
INSERT INTO tickwright.trackers (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
SELECT n, now(), now() + interval '1 day', 1, n % 7200, 1, 's', 'x' || n FROM generate_series(1, 50000) AS n;
"""
TABLES = ("poll_queue", "poll_done", "trackers", "workers", "partners")


@pytest.fixture(scope="module")
def waiting(module_url: str) -> Iterator[Planner]:
    """A planner on 40,000 waiting poll groups of twenty partners."""
    planner = Planner(module_url)
    planner.run(FILL)
    for table in TABLES:
        planner.run(f"ANALYZE tickwright.{table}")
    yield planner
    planner.close()


def test_taking_reads_the_oldest_groups_of_its_partners(waiting: Planner) -> None:
    """Three groups of two partners: a few dozen pages, whatever waits for the others."""
    waiting.prepare("take", poll_queue._SQL["take"])
    plan = waiting.explain("take", 7, [3, 4], [3, 3], 0)
    assert plan.scans_of("poll_queue") == {"poll_queue_waiting", "poll_queue_pkey"}, plan.text
    assert plan.blocks < 300, plan.text


def test_preparing_reads_its_groups_and_trackers(waiting: Planner) -> None:
    """The inbox is read by slot and second, trackers by their ids."""
    waiting.prepare("prepare_groups", result_writer.SQL["prepare"])
    due = waiting.run("SELECT due_at FROM tickwright.poll_done WHERE slot_id = 5 LIMIT 1")[0][0]
    plan = waiting.explain(
        "prepare_groups", [0], [5], [f'"{due.isoformat()}"'], [3], [0] * 50, range(100, 150), ["x"] * 50
    )
    assert plan.scans_of("poll_done") == {"poll_done_due"}, plan.text
    assert plan.scans_of("trackers") == {"trackers_pkey"}, plan.text
    assert plan.blocks < 1000, plan.text


def test_reclaiming_reads_the_groups_of_the_lost_session(waiting: Planner) -> None:
    """By owner: waiting groups are not read."""
    waiting.prepare("reclaim_groups", poll_queue._SQL["reclaim"])
    plan = waiting.explain("reclaim_groups", [8])
    assert plan.scans_of("poll_queue") == {"poll_queue_taken"}, plan.text
    assert plan.blocks < 20, plan.text


def test_writing_results_reads_their_groups_and_trackers(waiting: Planner) -> None:
    """Fifty answers: the ledger by slot and second, trackers by their ids."""
    waiting.prepare("effects", result_writer.SQL["write_results"])
    due = waiting.run("SELECT due_at FROM tickwright.poll_done WHERE slot_id = 5 LIMIT 1")[0][0]
    group = ([0], [5], [f'"{due.isoformat()}"'], [3], [120])
    ids = range(100, 150)
    answers = (
        [0] * 50,
        ids,
        ["moved"] * 50,
        ["null"] * 50,
        ["null"] * 50,
        ["[]"] * 50,
        ["[]"] * 50,
        ["null"] * 50,
        [False] * 50,
    )
    plan = waiting.explain("effects", *group, *answers, "pg:x")
    assert plan.scans_of("poll_done") == {"poll_done_due"}, plan.text
    assert plan.scans_of("trackers") == {"trackers_pkey"}, plan.text


def test_the_check_for_groups_without_an_owner_reads_taken_ones_only(waiting: Planner) -> None:
    """No waiting ones: the session's own by its token, those of others by the index of taken groups."""
    waiting.prepare("release_unknown", poll_queue._SQL["release_unknown"])
    plan = waiting.explain("release_unknown", 8, range(100), ['"2026-01-01T00:00:00Z"'] * 100)
    assert plan.scans_of("poll_queue") == {"poll_queue_taken"}, plan.text
    assert plan.blocks < 20, plan.text
    waiting.prepare("orphans", poll_queue._SQL["orphans"])
    plan = waiting.explain("orphans")
    assert plan.scans_of("poll_queue") <= {"poll_queue_taken", "poll_queue_pkey"}, plan.text


def test_locking_slices_reads_one_row_of_the_ledger_for_each(waiting: Planner) -> None:
    """By the key of the slice ledger, whatever else it holds."""
    waiting.run(
        "INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected) "
        "SELECT date_trunc('minute', now()) - n * interval '1 minute', n % 120, p, 120, 1 "
        "FROM generate_series(1, 2000) AS n, generate_series(1, 20) AS p"
    )
    waiting.run("ANALYZE tickwright.poll_slices")
    rows = waiting.run("SELECT slot_id, due_at, partner_no FROM tickwright.poll_slices WHERE partner_no = 3 LIMIT 50")
    slots, instants, partners = zip(*rows, strict=True)
    waiting.prepare("lock_slices", result_writer.SQL["lock_slices"])
    plan = waiting.explain("lock_slices", [*slots], [f'"{at.isoformat()}"' for at in instants], [*partners])
    assert plan.scans_of("poll_slices") == {"poll_slices_pkey"}, plan.text
    assert plan.blocks < 10 * len(rows), plan.text


def test_an_exchange_with_partners_reads_their_rows_and_shares(waiting: Planner) -> None:
    """Two partners of a thousand with twenty sessions each: no other partner, and no other session."""
    waiting.run(
        "INSERT INTO tickwright.partners (name) SELECT 'far' || n FROM generate_series(1, 1000) AS n;"
        "INSERT INTO tickwright.partner_states (partner_no) SELECT partner_no FROM tickwright.partners;"
        "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) "
        "SELECT n, 'w', '{}', '0', now() + interval '1 h' FROM generate_series(1000, 2999) AS n;"
        "INSERT INTO tickwright.partner_shares (partner_no, worker, granted) "
        "SELECT partner_no, 1000 + (partner_no * 20 + n) % 2000, 1 "
        "FROM tickwright.partners, generate_series(1, 20) AS n"
    )
    for table in ("partners", "partner_states", "partner_shares", "workers"):
        waiting.run(f"ANALYZE tickwright.{table}")
    rows = waiting.run("SELECT partner_no, xmin::text FROM tickwright.partner_states ORDER BY partner_no DESC LIMIT 2")
    numbers, versions = zip(*rows, strict=True)
    waiting.prepare("read_states", contract.SQL["read_states"])
    plan = waiting.explain("read_states", [*numbers])
    assert plan.scans_of("partner_states") == {"partner_states_pkey"}, plan.text
    assert plan.scans_of("partner_shares") == {"partner_shares_pkey"}, plan.text
    assert plan.scans_of("workers") == {"workers_pkey"}, plan.text
    assert plan.blocks < 250, plan.text
    waiting.prepare("write_exchange", contract.SQL["write_exchange"])
    zeros = [0.0, 0.0]
    decided = (zeros, zeros, ["closed"] * 2, zeros, [0, 0], [9, 9], zeros, zeros, [0, 0], [0, 0], [1, 1])
    plan = waiting.explain("write_exchange", 7, [*numbers], [*versions], *decided, ["none", "none"])
    assert plan.scans_of("partner_states") == {"partner_states_pkey"}, plan.text
    assert plan.blocks < 60, plan.text
