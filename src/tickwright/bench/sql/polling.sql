-- name: add_account
-- An account with its interval.
INSERT INTO tickwright.polling_schedule_config (account_id, polling_interval_minutes) VALUES ($1, $2) RETURNING account_no;

-- name: add_partner
-- A partner.
INSERT INTO tickwright.partners (name) VALUES ($1) RETURNING partner_no;

-- name: register
-- Trackers in the order in which they come: accounts and partners mixed by chance, with their shares.
INSERT INTO tickwright.tracker_intake (account_no, partner_no, status, external_id, tracking_until)
SELECT ($2::integer[])[1 + floor(random() * cardinality($2::integer[]))], ($3::smallint[])[1 + floor(random() * cardinality($3::smallint[]))],
       'in_transit', 'AWB' || ($4::bigint + n), now() + interval '60 days'
  FROM generate_series(1, $1::integer) AS n;

-- name: end_at_random
-- A share of all trackers ends, on whatever wheel they are.
UPDATE tickwright.trackers SET place = NULL, ended_at = now(), status = 'Delivered'
 WHERE place IS NOT NULL AND id BETWEEN $2 AND $3 AND random() < $1::float8;

-- name: ids
-- The range of the trackers' ids.
SELECT coalesce(min(id), 0) AS first, coalesce(max(id), 0) AS last FROM tickwright.trackers;

-- name: drop_polls
-- What the relay would have published by now.
TRUNCATE tickwright.scheduler_outbox;

-- name: write_results
-- What consumers would write for every poll that waits: the ledger, and a new status of one in twenty.
WITH polls AS (
  DELETE FROM tickwright.scheduler_outbox RETURNING slot_id, due_at, partner_no, ids
), done AS (
  INSERT INTO tickwright.poll_done (slot_id, due_at, partner_no, done_at, ids)
  SELECT slot_id, due_at, partner_no, now(), ids FROM polls
)
UPDATE tickwright.trackers t SET status = 'moved' || $1::text, status_at = now()
 WHERE t.id = ANY (ARRAY (SELECT id FROM polls CROSS JOIN LATERAL unnest(ids) AS x (id) WHERE id % 20 = $1::integer % 20));

-- name: begin_turns
-- Every slot is next due at its first minute at $1 or later, as if it had been made long before.
UPDATE tickwright.poll_slots
   SET next_due_at = next_due_at + ceil(date_part('epoch', $1::timestamptz - next_due_at) / (60 * interval_minutes))
                                   * make_interval(mins => interval_minutes);

-- name: slots
-- The wheel of every slot.
SELECT slot_id, interval_minutes FROM tickwright.poll_slots;

-- name: moved_since
-- How many trackers were written by transaction $1 or a later one. A database that is bench's own is young: no id repeats.
SELECT count(*) FROM tickwright.trackers WHERE xmin::text::bigint >= $1::bigint AND ended_at IS NULL;

-- name: fill_slices
-- The slice ledger as it is after $2 of turns before $1: rows that are as large as real ones.
INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected, published, polled, loads)
SELECT due_at, s.slot_id, p.partner_no, s.interval_minutes, 60, 60, 60, '{10,10,10,10,10,10}'
  FROM tickwright.poll_slots s CROSS JOIN tickwright.partners p
 CROSS JOIN LATERAL generate_series(s.prev_due_at, $1::timestamptz - $2::interval, -make_interval(mins => s.interval_minutes)) AS due_at
    ON CONFLICT DO NOTHING;

-- name: bucket_loads
-- How many trackers there are in each ten seconds of each wheel, by partner.
SELECT s.interval_minutes, (date_part('epoch', s.next_due_at) / 60)::bigint % s.interval_minutes AS minute,
       t.place % 60 / 10 AS bucket, t.partner_no, count(*) AS trackers
  FROM tickwright.trackers t JOIN tickwright.poll_slots s ON s.slot_id = t.place / 60
 GROUP BY 1, 2, 3, 4;

-- name: sizes
-- What the trackers and everything around them take up on disk: tables (with what is out of line, and maps) and indexes.
WITH ours AS (
  SELECT c.oid, c.relname FROM pg_class c
   WHERE c.relnamespace = 'tickwright'::regnamespace AND c.relkind = 'r'
     AND c.relname IN ('trackers', 'tracker_intake', 'poll_slots', 'poll_done', 'poll_slices', 'scheduler_outbox', 'poll_places',
                       'tracker_events', 'poll_queue')
)
SELECT relname::text AS name, pg_table_size(oid) AS bytes FROM ours
UNION ALL
SELECT i.indexrelid::regclass::text, pg_relation_size(i.indexrelid) FROM ours JOIN pg_index i ON i.indrelid = ours.oid
ORDER BY 1;

-- name: fill_outbox
-- Polls that are released already: $1 rows of a thousand trackers each from the one numbered $4 on, of one partner and one
-- account.
INSERT INTO tickwright.scheduler_outbox (release_at, due_at, slot_id, partner_no, ids, account_nos, external_ids)
SELECT now(), date_trunc('minute', now()) + n % 60 * interval '1 second', 0, $2::smallint, ids,
       array_fill($3::integer, ARRAY[1000]), ARRAY (SELECT 'AWB' || id FROM unnest(ids) AS id)
  FROM generate_series($4::integer, $4::integer + $1::integer - 1) AS n
 CROSS JOIN LATERAL (SELECT array_agg(n::bigint * 1000 + k) AS ids FROM generate_series(1, 1000) AS k) AS thousand;

-- name: unpublished
-- Whether any poll is not published yet.
SELECT EXISTS (SELECT FROM tickwright.scheduler_outbox);

-- name: fill_polls
-- Polls of real trackers that were due $2 minutes ago, at least $1 of them where there are so many: whole slots, the
-- first of each wheel, then the second; a row per second and partner as the selector makes them, released already; and
-- their rows of the slice ledger.
WITH size AS MATERIALIZED (
  SELECT place / 60 AS slot_id, count(*) AS trackers FROM tickwright.trackers WHERE place IS NOT NULL GROUP BY 1
), chosen AS MATERIALIZED (
  SELECT slot_id FROM (
    SELECT size.slot_id, sum(trackers) OVER (ORDER BY size.slot_id - w.first_slot_id, size.slot_id) - trackers AS before
      FROM size JOIN tickwright.poll_slots s USING (slot_id) JOIN tickwright.poll_wheels w USING (interval_minutes)) AS added
   WHERE before < $1::bigint
), due AS MATERIALIZED (
  SELECT t.place / 60 AS slot_id, t.partner_no,
         date_trunc('minute', now()) - $2::integer * interval '1 minute' + t.place % 60 * interval '1 second' AS due_at,
         array_agg(t.id) AS ids, array_agg(t.account_no) AS account_nos, array_agg(t.external_id) AS external_ids
    FROM tickwright.trackers t WHERE t.place / 60 IN (SELECT slot_id FROM chosen) GROUP BY 1, 2, 3
), put AS (
  INSERT INTO tickwright.scheduler_outbox (release_at, due_at, slot_id, partner_no, ids, account_nos, external_ids)
  SELECT now(), due_at, slot_id, partner_no, ids[k + 1 : k + 1000], account_nos[k + 1 : k + 1000], external_ids[k + 1 : k + 1000]
    FROM due CROSS JOIN generate_series(0, cardinality(ids) - 1, 1000) AS k ORDER BY due_at, slot_id, partner_no
), slice AS (
  INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected)
  SELECT date_trunc('minute', due_at), slot_id, partner_no, s.interval_minutes, sum(cardinality(ids))
    FROM due JOIN tickwright.poll_slots s USING (slot_id) GROUP BY 1, 2, 3, 4
  ON CONFLICT (due_at, slot_id, partner_no) DO UPDATE SET selected = poll_slices.selected + excluded.selected
)
SELECT coalesce(sum(cardinality(ids)), 0)::bigint AS polls, date_trunc('minute', min(due_at)) AS minute FROM due;

-- name: done_of
-- Polls that were due in the minute from $1 on: how many are done, and the seconds from the first effect to the last.
SELECT coalesce(sum(cardinality(ids)), 0)::bigint AS polls, date_part('epoch', max(done_at) - min(done_at)) AS seconds
  FROM tickwright.poll_done WHERE due_at >= $1::timestamptz AND due_at < $1::timestamptz + interval '1 minute';

-- name: relayed
-- Whether everything that was released is published.
SELECT NOT EXISTS (SELECT FROM tickwright.scheduler_outbox WHERE release_at <= now());
