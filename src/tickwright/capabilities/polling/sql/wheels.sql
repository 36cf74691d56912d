-- name: add_wheel
-- Create the wheel of an interval: a slot per minute, each first due at its own minute, at least two minutes ahead. Repeating it does
-- nothing; one transaction at a time creates wheels. No wheel goes beyond the last slot whose places fit an integer.
-- Index: poll_wheels_pkey.
WITH one_at_a_time AS MATERIALIZED (
  SELECT FROM tickwright.poll_news FOR UPDATE
), wheel AS (
  INSERT INTO tickwright.poll_wheels (interval_minutes, first_slot_id)
  SELECT $1, next.slot_id
    FROM one_at_a_time,
         (SELECT coalesce(max(w.first_slot_id + w.interval_minutes), 0) AS slot_id FROM tickwright.poll_wheels w) AS next
   WHERE next.slot_id + $1 <= 35791394
      ON CONFLICT DO NOTHING
  RETURNING first_slot_id
), soon AS (
  SELECT floor(date_part('epoch', clock_timestamp()) / 60)::bigint + 2 AS minute
)
INSERT INTO tickwright.poll_slots (slot_id, interval_minutes, next_due_at)
SELECT wheel.first_slot_id + slot.minute, $1,
       to_timestamp(60 * (soon.minute + (slot.minute - soon.minute % $1 + $1) % $1))
  FROM wheel, soon, generate_series(0, $1 - 1) AS slot (minute);

-- name: missing_wheels
-- Intervals of accounts that have no wheel yet. Small: a row per account.
SELECT DISTINCT polling_interval_minutes FROM tickwright.polling_schedule_config
EXCEPT SELECT interval_minutes FROM tickwright.poll_wheels;

-- name: place_new
-- Move at most $1 trackers, oldest first, from the intake to the next places of their (partner, interval) sequence. A tracker that is
-- placed already is dropped, and its place in the sequence stays empty. Rows are written in the order of their places, so that a
-- selection finds many of its trackers on one page. placed_at is NULL, which needs no space, unless created_at is much older.
-- Trackers wait in the intake while their account has no wheel or is being changed; the share lock keeps the account's interval until
-- the commit. Index: tracker_intake_pkey, poll_places_pkey, trackers_external.
WITH ready AS MATERIALIZED (
  SELECT i.id, c.polling_interval_minutes AS interval_minutes, w.first_slot_id
    FROM tickwright.tracker_intake i
    JOIN tickwright.polling_schedule_config c ON c.account_no = i.account_no
    JOIN tickwright.poll_wheels w ON w.interval_minutes = c.polling_interval_minutes
   ORDER BY i.id LIMIT $1 FOR UPDATE OF i SKIP LOCKED FOR SHARE OF c SKIP LOCKED
), taken AS (
  DELETE FROM tickwright.tracker_intake t USING ready WHERE t.id = ready.id
  RETURNING t.*, ready.interval_minutes, ready.first_slot_id
), numbered AS MATERIALIZED (
  SELECT t.*, row_number() OVER (PARTITION BY t.partner_no, t.interval_minutes ORDER BY t.id) AS n FROM taken t
), size AS MATERIALIZED (
  SELECT partner_no, interval_minutes, count(*) AS trackers FROM numbered GROUP BY partner_no, interval_minutes
), counter AS (
  INSERT INTO tickwright.poll_places AS p (partner_no, interval_minutes, taken)
  SELECT partner_no, interval_minutes, trackers FROM size ORDER BY 1, 2
      ON CONFLICT (partner_no, interval_minutes) DO UPDATE SET taken = p.taken + excluded.taken
  RETURNING p.partner_no, p.interval_minutes, p.taken
), seated AS MATERIALIZED (
  SELECT k.*, tickwright.place_of(k.first_slot_id, k.interval_minutes, k.partner_no, counter.taken - size.trackers + k.n) AS place,
         CASE WHEN EXISTS (SELECT FROM tickwright.trackers old WHERE old.id = k.id)
              THEN nextval('tickwright.tracker_ids') ELSE k.id END AS free_id
    FROM numbered k
    JOIN counter USING (partner_no, interval_minutes)
    JOIN size USING (partner_no, interval_minutes)
), placed AS (
  INSERT INTO tickwright.trackers
         (id, created_at, tracking_until, last_polled_at, status_at, skip_until, placed_at, account_no, place, partner_no, status, external_id)
  SELECT free_id, created_at, tracking_until, last_polled_at, status_at, skip_until,
         CASE WHEN created_at < clock_timestamp() - interval '10 minutes' THEN clock_timestamp() END,
         account_no, seated.place, partner_no, status, external_id
    FROM seated ORDER BY seated.place
      ON CONFLICT (external_id, partner_no) DO NOTHING
  RETURNING 1
)
SELECT (SELECT count(*) FROM taken) AS taken, (SELECT count(*) FROM placed) AS placed;

-- name: pass_missed
-- Pass slots that were due before $1 and not selected: each keeps its last missed minute and continues with the first one from $1 on.
-- Earlier missed minutes become rows of the slice ledger, at most a hundred per slot. Writes a row per slot and reads no tracker.
-- Small: a row per slot.
WITH missed AS (
  SELECT s.slot_id, s.interval_minutes, s.next_due_at AS first_at, s.missed_due_at,
         floor(date_part('epoch', $1::timestamptz - s.next_due_at) / (60 * s.interval_minutes))::integer
         - CASE WHEN date_part('epoch', $1::timestamptz - s.next_due_at)::bigint % (60 * s.interval_minutes) = 0 THEN 1 ELSE 0 END AS more
    FROM tickwright.poll_slots s WHERE s.next_due_at < $1 ORDER BY s.slot_id FOR UPDATE
), coalesced AS (
  INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected, coalesced)
  SELECT m.first_at + minute.n * make_interval(mins => m.interval_minutes), m.slot_id, 0, m.interval_minutes, 0, true
    FROM missed m CROSS JOIN LATERAL generate_series(greatest(0, m.more - 100), m.more - 1) AS minute (n)
   UNION ALL
  SELECT m.missed_due_at, m.slot_id, 0, m.interval_minutes, 0, true FROM missed m WHERE m.missed_due_at IS NOT NULL
      ON CONFLICT DO NOTHING
)
UPDATE tickwright.poll_slots s
   SET missed_due_at = m.first_at + m.more * make_interval(mins => m.interval_minutes),
       next_due_at = m.first_at + (m.more + 1) * make_interval(mins => m.interval_minutes)
  FROM missed m WHERE s.slot_id = m.slot_id
RETURNING s.slot_id;

-- name: due_slots
-- The slots that are due until $1, in order of their instants. Small: a row per slot.
SELECT next_due_at, array_agg(slot_id ORDER BY slot_id) AS slots
  FROM tickwright.poll_slots WHERE next_due_at <= $1 GROUP BY next_due_at ORDER BY next_due_at;

-- name: lock_slot
-- Wait for running moves. It is a statement of its own: the next statement sees what they committed, while a statement that waits
-- itself would read the trackers as they were before. It also sets the transaction's planner: a slot's trackers may be hashed in
-- memory instead of sorted, and are read by their places, whatever the planner estimates for the range. Index: poll_slots_pkey.
SELECT slot_id, set_config('work_mem', '64MB', true), set_config('enable_seqscan', 'off', true)
  FROM tickwright.poll_slots WHERE slot_id = $1 FOR UPDATE;

-- name: select_slot
-- Select slot $1 for its minute $2: advance it, put its trackers into the outbox by second and partner (at most $3 trackers in a row),
-- and open the slice ledger. It includes a missed minute of the slot. The slot advances in this transaction, which makes (tracker, due
-- second) unique. A minute that has begun is not selected, for example after a stall: it is missed, and caught up.
-- Index: poll_slots_pkey, trackers_place.
WITH slot AS (
  UPDATE tickwright.poll_slots s
     SET prev_due_at = s.next_due_at, next_due_at = s.next_due_at + make_interval(mins => s.interval_minutes), missed_due_at = NULL
    FROM (SELECT slot_id, missed_due_at FROM tickwright.poll_slots
           WHERE slot_id = $1 AND next_due_at = $2 AND next_due_at > clock_timestamp() - interval '2 seconds' FOR UPDATE) AS old
   WHERE s.slot_id = old.slot_id
  RETURNING s.slot_id, s.interval_minutes, s.prev_due_at AS due_at, old.missed_due_at
), coalesced AS (
  INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected, coalesced)
  SELECT missed_due_at, slot_id, 0, interval_minutes, 0, true FROM slot WHERE missed_due_at IS NOT NULL
      ON CONFLICT DO NOTHING
), {selection};

-- name: next_missed
-- Per wheel the missed slot with the trackers that have waited longest for a poll. Small: a row per slot.
SELECT DISTINCT ON (interval_minutes) slot_id, missed_due_at
  FROM tickwright.poll_slots WHERE missed_due_at IS NOT NULL AND next_due_at > $1
 ORDER BY interval_minutes, prev_due_at NULLS FIRST, missed_due_at;

-- name: select_missed
-- Select the missed minute of slot $1: as select_slot, released over the minute from $2 on.
WITH slot AS (
  UPDATE tickwright.poll_slots s
     SET prev_due_at = old.missed_due_at, missed_due_at = NULL
    FROM (SELECT slot_id, missed_due_at FROM tickwright.poll_slots
           WHERE slot_id = $1 AND missed_due_at IS NOT NULL
             AND $2::timestamptz > clock_timestamp() - interval '2 seconds' FOR UPDATE) AS old
   WHERE s.slot_id = old.slot_id
  RETURNING s.slot_id, s.interval_minutes, s.prev_due_at AS due_at
), {selection};

-- name: clock
-- The database's clock, and the next whole minute: a slot that was due before it is missed.
SELECT clock_timestamp() AS now, to_timestamp(60 * ceil(date_part('epoch', clock_timestamp()) / 60)) AS next_minute;

-- name: last_catch_up
-- The newest minute over which the catch-up released polls. Index: job_config_pkey.
SELECT slice_start FROM tickwright.job_config WHERE job_name = $1;

-- name: note_catch_up
-- Note in the lease's row over which minute the catch-up releases polls. Index: job_config_pkey.
UPDATE tickwright.job_config SET slice_start = $2, slice_end = $2::timestamptz + interval '1 minute' WHERE job_name = $1;

-- name: passed_slots
-- The last minute of each slot that is over, after minute $1 of slot $2, in order. It goes by the clock and not by what the selector
-- did: that may be a minute ahead, and always is with an interval of one or two minutes. A minute that was not selected is over, too.
-- Small: a row per slot.
WITH minute AS MATERIALIZED (
  SELECT floor(date_part('epoch', clock_timestamp()) / 60)::bigint - 1 AS last
)
SELECT s.slot_id, s.interval_minutes, passed.due_at
  FROM minute
 CROSS JOIN tickwright.poll_slots s
  JOIN tickwright.poll_wheels w ON w.interval_minutes = s.interval_minutes
 CROSS JOIN LATERAL (
   SELECT to_timestamp(60 * (minute.last - (minute.last - s.slot_id + w.first_slot_id) % s.interval_minutes)) AS due_at) AS passed
 WHERE (passed.due_at, s.slot_id) > ($1::timestamptz, $2::integer) ORDER BY passed.due_at, s.slot_id;

-- name: end_aged
-- End at most $2 trackers of slot $1 whose tracking time is over, and send an event of each to $3. Each row gets the instant of its
-- last poll from the ledger, where a tracker without a place is not found. "+ 0": ordered by the bare id, the planner would read all
-- trackers by id until it has enough. A tracker that another transaction locks ends after the slot's next minute.
-- Index: trackers_place, poll_done_due.
WITH too_old AS MATERIALIZED (
  SELECT old.id FROM tickwright.trackers old
   WHERE old.place BETWEEN $1::integer * 60 AND $1::integer * 60 + 59 AND old.tracking_until <= clock_timestamp()
   ORDER BY old.id + 0 LIMIT $2 FOR UPDATE SKIP LOCKED
), polled AS (
  SELECT ledger.id, max(ledger.done_at) AS at
    FROM (SELECT unnest(d.ids) AS id, d.done_at FROM tickwright.poll_done d WHERE d.slot_id = $1) AS ledger
   WHERE ledger.id IN (SELECT id FROM too_old) AND EXISTS (SELECT FROM too_old) GROUP BY ledger.id
), aged AS (
  UPDATE tickwright.trackers t
     SET ended_at = clock_timestamp(), ended_by = 'aged', place = NULL,
         last_polled_at = greatest(t.last_polled_at, (SELECT polled.at FROM polled WHERE polled.id = t.id))
   WHERE t.id = ANY (ARRAY (SELECT id FROM too_old))
  RETURNING t.id, t.account_no, t.partner_no, t.external_id, t.status, t.ended_at
), notified AS (
  INSERT INTO tickwright.outbox (destination, key, payload)
  SELECT $3, a.id::text,
         jsonb_build_object('version', 1, 'event', 'ended', 'reason', 'aged', 'tracker_id', a.id, 'account_id', c.account_id,
                            'partner', p.name, 'external_id', a.external_id, 'status', a.status, 'at', a.ended_at)
    FROM aged a
    JOIN tickwright.polling_schedule_config c ON c.account_no = a.account_no
    JOIN tickwright.partners p ON p.partner_no = a.partner_no
)
SELECT count(*) FROM aged;

-- name: forget_done
-- Delete rows of slot $1 in the ledger of done polls from before its last three minutes and ten minutes more. Newer ones are still
-- read: by the freshness judge, which with short intervals works after the next minute, for late messages, and by explain.
-- Index: poll_done_due.
DELETE FROM tickwright.poll_done d
 USING tickwright.poll_slots s
 WHERE s.slot_id = $1 AND d.slot_id = s.slot_id
   AND d.due_at < s.prev_due_at - 2 * make_interval(mins => s.interval_minutes) - interval '10 minutes';

-- name: forget_slices
-- Delete rows of slot $1, last due at $2, in the slice ledger: up to a hundred minutes that are an interval older than $3. So the
-- minute before each kept one is kept, for levelling and alerts. Also at most $4 rows of any slot that are seven days older than $3,
-- which were not deleted in time. Index: poll_slices_pkey.
WITH minute AS (
  SELECT $2::timestamptz - n * make_interval(mins => interval_minutes) AS due_at
    FROM tickwright.poll_slots
   CROSS JOIN LATERAL (SELECT floor(date_part('epoch', $3::interval) / (60 * interval_minutes))::integer AS kept) AS slices_kept
   CROSS JOIN LATERAL generate_series(kept + 2, kept + 101) AS n
   WHERE slot_id = $1
)
DELETE FROM tickwright.poll_slices
 WHERE (due_at, slot_id, partner_no) IN (
   SELECT l.due_at, l.slot_id, l.partner_no FROM minute JOIN tickwright.poll_slices l ON l.due_at = minute.due_at AND l.slot_id = $1
   UNION ALL
   (SELECT due_at, slot_id, partner_no FROM tickwright.poll_slices
     WHERE due_at < $2 - $3 - interval '7 days' ORDER BY due_at LIMIT $4));

-- name: changed_accounts
-- Accounts with trackers on the wheel of another interval, by both intervals. Small: a row per account.
SELECT source, c.polling_interval_minutes AS target, array_agg(c.account_no) AS accounts
  FROM tickwright.polling_schedule_config c CROSS JOIN unnest(c.stands_on) AS source
 GROUP BY 1, 2 ORDER BY 1, 2;

-- name: wheel_slots
-- The slots of an interval's wheel. Index: poll_wheels_pkey.
SELECT first_slot_id, first_slot_id + interval_minutes AS after_slot_id FROM tickwright.poll_wheels WHERE interval_minutes = $1;

-- name: move_to_wheel
-- Move trackers of the accounts $2 from slot $1 to the wheel of interval $3: the next $4 with ids above $5. Shared locks on the slots
-- of both sides exclude the selector until the commit, so that a tracker is selected in exactly one of the two slots. A tracker moves
-- only to a slot whose next minute is ahead and after the old slot's last one. It does not move to a slot that is to be caught up,
-- which would poll it twice for one outage. Trackers that another transaction locks stay: waiting for them would block the selector.
-- "+ 0" as in end_aged. Index: trackers_place, poll_done_due.
WITH locked AS MATERIALIZED (
  SELECT slot_id, next_due_at, prev_due_at, missed_due_at FROM tickwright.poll_slots
   WHERE slot_id = $1 OR interval_minutes = $3 ORDER BY slot_id FOR SHARE
), chosen AS MATERIALIZED (
  SELECT t.id, t.partner_no, t.place FROM tickwright.trackers t
   WHERE t.place BETWEEN $1 * 60 AND $1 * 60 + 59 AND t.account_no = ANY ($2::integer[]) AND t.id + 0 > $5
     AND (SELECT count(*) FROM locked) > 0 -- lock the slots first
   ORDER BY t.id + 0 LIMIT $4 FOR UPDATE OF t SKIP LOCKED
), moving AS (
  SELECT s.*, row_number() OVER (PARTITION BY s.partner_no ORDER BY s.id) AS n FROM chosen s
), counter AS (
  INSERT INTO tickwright.poll_places AS p (partner_no, interval_minutes, taken)
  SELECT partner_no, $3, count(*) FROM chosen GROUP BY partner_no ORDER BY partner_no
      ON CONFLICT (partner_no, interval_minutes) DO UPDATE SET taken = p.taken + excluded.taken
  RETURNING p.partner_no, p.taken
), target AS (
  SELECT m.id, m.place AS old_place,
         tickwright.place_of(w.first_slot_id, $3, m.partner_no,
                             counter.taken - (SELECT count(*) FROM chosen s WHERE s.partner_no = m.partner_no) + m.n) AS place
    FROM moving m JOIN counter USING (partner_no) JOIN tickwright.poll_wheels w ON w.interval_minutes = $3
), polled AS (
  SELECT ledger.id, max(ledger.done_at) AS at
    FROM (SELECT unnest(d.ids) AS id, d.done_at FROM tickwright.poll_done d WHERE d.slot_id = $1) AS ledger
   WHERE ledger.id IN (SELECT id FROM chosen) GROUP BY ledger.id
), moved AS (
  UPDATE tickwright.trackers t
     SET place = target.place, placed_at = clock_timestamp(),
         last_polled_at = greatest(t.last_polled_at, (SELECT polled.at FROM polled WHERE polled.id = t.id))
    FROM target JOIN locked goal ON goal.slot_id = target.place / 60 JOIN locked source ON source.slot_id = $1
   WHERE t.id = target.id AND t.place = target.old_place
     AND goal.next_due_at > clock_timestamp() AND goal.next_due_at > coalesce(source.prev_due_at, '-infinity')
     AND goal.missed_due_at IS NULL
  RETURNING 1
)
SELECT (SELECT count(*) FROM chosen) AS seen, (SELECT count(*) FROM moved) AS moved, (SELECT max(id) FROM chosen) AS last_id;

-- name: still_on_wheel
-- Whether any tracker of the accounts $2 is still in the slots from $1 to before $3. Index: trackers_place.
SELECT EXISTS (SELECT FROM tickwright.trackers
                WHERE place BETWEEN $1::integer * 60 AND $3::integer * 60 - 1 AND account_no = ANY ($2::integer[]));

-- name: note_placed
-- Note that no tracker of the accounts $1 is left on the wheel of interval $3, unless their interval, $2, was changed again.
UPDATE tickwright.polling_schedule_config
   SET stands_on = array_remove(stands_on, $3),
       placed_interval_minutes = CASE WHEN array_remove(stands_on, $3) = '{}' THEN polling_interval_minutes
                                      ELSE placed_interval_minutes END
 WHERE account_no = ANY ($1::integer[]) AND polling_interval_minutes = $2;

-- name: loads
-- What the last selection of each slot of a wheel counted, in buckets of ten seconds. Index: poll_slices_pkey.
SELECT s.slot_id, s.next_due_at, s.prev_due_at, l.partner_no, l.loads
  FROM tickwright.poll_slots s
  JOIN tickwright.poll_slices l ON l.due_at = s.prev_due_at AND l.slot_id = s.slot_id AND l.partner_no > 0
 WHERE s.interval_minutes = $1 AND s.missed_due_at IS NULL
 ORDER BY l.partner_no, s.slot_id;

-- name: level_bucket
-- Move $3 trackers of partner $2 from the bucket that begins at place $1 to the one that begins at place $4, spread over its ten
-- seconds, and correct the counts of both slots' last selections. As move_to_wheel, and never to a slot that is due after the tracker's
-- own next minute, so that no tracker waits longer. It skips locked trackers and takes others. "+ 0" as in end_aged.
-- Index: trackers_place, poll_slices_pkey.
WITH locked AS MATERIALIZED (
  SELECT slot_id, next_due_at, prev_due_at, missed_due_at FROM tickwright.poll_slots
   WHERE slot_id IN ($1::integer / 60, $4::integer / 60) ORDER BY slot_id FOR SHARE
), allowed AS (
  SELECT goal.prev_due_at AS goal_at, source.prev_due_at AS source_at
    FROM locked source, locked goal
   WHERE source.slot_id = $1 / 60 AND goal.slot_id = $4 / 60 AND goal.next_due_at > clock_timestamp()
     AND goal.next_due_at > source.prev_due_at AND goal.next_due_at <= source.next_due_at
     AND goal.missed_due_at IS NULL
), chosen AS MATERIALIZED (
  SELECT t.id, row_number() OVER (ORDER BY t.id) AS n FROM (
    SELECT old.id FROM tickwright.trackers old, allowed
     WHERE old.place BETWEEN $1 AND $1 + 9 AND old.partner_no = $2 ORDER BY old.id + 0 DESC LIMIT $3 FOR UPDATE OF old SKIP LOCKED) AS t
), moved AS (
  UPDATE tickwright.trackers t SET place = $4 + (chosen.n + chosen.id) % 10, placed_at = clock_timestamp()
    FROM chosen WHERE t.id = chosen.id
  RETURNING 1
), counted AS (
  UPDATE tickwright.poll_slices l
     SET loads[$1 % 60 / 10 + 1] = l.loads[$1 % 60 / 10 + 1] - (SELECT count(*) FROM moved)
    FROM allowed WHERE l.slot_id = $1 / 60 AND l.due_at = allowed.source_at AND l.partner_no = $2
), counted_there AS (
  UPDATE tickwright.poll_slices l
     SET loads[$4 % 60 / 10 + 1] = l.loads[$4 % 60 / 10 + 1] + (SELECT count(*) FROM moved)
    FROM allowed WHERE l.slot_id = $4 / 60 AND l.due_at = allowed.goal_at AND l.partner_no = $2 AND $1 / 60 <> $4 / 60
)
SELECT count(*) FROM moved;
