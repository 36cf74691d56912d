-- name: list
-- Counts of the slots' minutes from $1 to before $2, in slices of $4 minutes, per partner. A minute that is to come, or late, counts
-- the trackers of the slot's last selection. Index: poll_slices_pkey.
WITH slot_minute AS (
  SELECT due_at, partner_no, selected + skipped + deferred AS expected, selected, skipped, deferred, published, polled, late, superseded, coalesced
    FROM tickwright.poll_slices
   WHERE due_at >= $1 AND due_at < $2 AND ($3::smallint IS NULL OR partner_no = $3)
  UNION ALL
  SELECT s.next_due_at, l.partner_no, (SELECT coalesce(sum(load), 0) FROM unnest(l.loads) AS load), 0, 0, 0, 0, 0, 0, 0, false
    FROM tickwright.poll_slots s
    JOIN tickwright.poll_slices l ON l.due_at = s.prev_due_at AND l.slot_id = s.slot_id AND NOT l.coalesced
   WHERE s.next_due_at >= $1 AND s.next_due_at < $2 AND ($3::smallint IS NULL OR l.partner_no = $3)
)
SELECT date_bin(make_interval(mins => $4), slot_minute.due_at, 'epoch') AS due_at, p.name AS partner,
       sum(expected)::bigint AS expected, sum(selected)::bigint AS selected, sum(skipped)::bigint AS skipped,
       sum(deferred)::bigint AS deferred,
       sum(published)::bigint AS published, sum(polled)::bigint AS polled, sum(late)::bigint AS late,
       sum(superseded)::bigint AS superseded, count(*) FILTER (WHERE coalesced) AS coalesced
  FROM slot_minute LEFT JOIN tickwright.partners p ON p.partner_no = slot_minute.partner_no
 GROUP BY 1, 2 ORDER BY 1 DESC, 2;

-- name: before
-- The newest minute before $1. Index: poll_slices_pkey, read backwards.
SELECT max(due_at) FROM tickwright.poll_slices WHERE due_at < $1 AND ($2::smallint IS NULL OR partner_no = $2);

-- name: clock
-- The database's clock, and the number of a partner. Index: partners_pkey.
SELECT clock_timestamp() AS now, (SELECT partner_no FROM tickwright.partners WHERE name = $1) AS partner_no;

-- name: last_minutes
-- Slots with their last minute from $1 to before $2, and in how many minutes each may be released: one slot of a wheel per minute.
-- Without slots whose next minute comes before that. Small: a row per slot.
SELECT slot_id, prev_due_at AS due_at, n::integer AS wait_minutes
  FROM (SELECT slot_id, prev_due_at, next_due_at,
               row_number() OVER (PARTITION BY interval_minutes ORDER BY prev_due_at, slot_id) AS n
          FROM tickwright.poll_slots WHERE prev_due_at >= $1 AND prev_due_at < $2) AS last
 WHERE next_due_at > clock_timestamp() + make_interval(mins => n::integer + 1) ORDER BY prev_due_at, slot_id;

-- name: count_minutes
-- How many slots were selected from $1 to before $2. Index: poll_slices_pkey.
SELECT count(DISTINCT (due_at, slot_id)) FROM tickwright.poll_slices WHERE due_at >= $1 AND due_at < $2 AND NOT coalesced;

-- name: lock_slot
-- Exclude the selector from a slot while its last minute is replayed; no row when a later one was selected. Index: poll_slots_pkey.
SELECT slot_id FROM tickwright.poll_slots WHERE slot_id = $1 AND prev_due_at = $2 FOR UPDATE;

-- name: missing
-- Trackers of a slot since before its last minute that would be selected for it, and have neither an answer nor a poll on its way. Not
-- those of accounts with a cap: which of them were deferred is not recorded. Unless $4, trackers with "held_by" are left out: their partner's
-- polls went to Kafka in batches that the group has not passed, or in a batch with unknown offsets. A position that was
-- reported before the batch proves nothing about it. An end below the batch's offsets is of a topic that was created again, without
-- the batch. Indexes: trackers_place, poll_done_due, poll_slices_pkey, poll_batches_pkey.
unpassed AS MATERIALIZED (
  SELECT l.partner_no,
         CASE WHEN EXISTS (
                SELECT FROM tickwright.poll_batches b
                 CROSS JOIN LATERAL unnest(b.partitions, b.last_offsets) AS u (partition, last_offset)
                  LEFT JOIN tickwright.poll_reads r ON r.topic = b.topic AND r.partition = u.partition
                  LEFT JOIN tickwright.poll_ends e ON e.topic = b.topic AND e.partition = u.partition AND e.shard = b.shard
                 WHERE b.shard = l.shard AND b.batch_no BETWEEN l.first_batch_no AND l.last_batch_no
                   AND (e.end_offset IS NULL OR e.end_offset > u.last_offset)
                   AND (r.position > u.last_offset AND r.seen_at >= b.published_at) IS NOT TRUE) THEN 'unread'
              WHEN (SELECT count(*) FROM tickwright.poll_batches b
                     WHERE b.shard = l.shard AND b.batch_no BETWEEN l.first_batch_no AND l.last_batch_no AND b.partition_count > 0)
                   <= l.last_batch_no - l.first_batch_no THEN 'unknown' END AS held_by
    FROM tickwright.poll_slices l
   WHERE l.due_at = $2 AND l.slot_id = $1 AND l.first_batch_no IS NOT NULL
), unanswered AS MATERIALIZED (
  SELECT t.id, t.account_no, t.partner_no, t.external_id, t.place - $1::integer * 60 AS second,
         CASE WHEN $4::boolean THEN NULL ELSE (SELECT u.held_by FROM unpassed u WHERE u.partner_no = t.partner_no) END AS held_by
    FROM tickwright.trackers t
   WHERE t.place BETWEEN $1::integer * 60 AND $1::integer * 60 + 59 AND ($3::smallint IS NULL OR t.partner_no = $3)
     AND t.account_no <> ALL (ARRAY (SELECT c.account_no FROM tickwright.polling_schedule_config c WHERE c.paused_at IS NOT NULL OR c.polls_per_slice_max IS NOT NULL))
     AND t.partner_no <> ALL (ARRAY (SELECT p.partner_no FROM tickwright.partners p WHERE p.paused_at IS NOT NULL))
     AND t.created_at < $2::timestamptz - interval '2 minutes'
     AND t.tracking_until > clock_timestamp()
     AND (t.skip_until IS NULL OR t.skip_until <= $2::timestamptz)
     AND (t.last_polled_at IS NULL OR t.last_polled_at < $2::timestamptz)
     AND t.id NOT IN (
       SELECT unnest(d.ids) FROM tickwright.poll_done d
        WHERE d.slot_id = $1 AND d.due_at >= $2 AND d.due_at < $2::timestamptz + interval '1 minute'
       UNION ALL
       SELECT unnest(o.ids) FROM tickwright.scheduler_outbox o
        WHERE o.slot_id = $1 AND o.due_at >= $2 AND o.due_at < $2::timestamptz + interval '1 minute'
       UNION ALL
       SELECT unnest(q.ids) FROM tickwright.poll_queue q
        WHERE q.slot_id = $1 AND q.due_at >= $2 AND q.due_at < $2::timestamptz + interval '1 minute')
), missing AS MATERIALIZED (
  SELECT id, account_no, partner_no, external_id, second FROM unanswered WHERE held_by IS NULL
);

-- name: count_missing
-- How many trackers a replay of one slot would poll, and how many it leaves out. Indexes: trackers_place, poll_done_due.
WITH {missing}
SELECT count(*) FILTER (WHERE held_by IS NULL) AS trackers, count(*) FILTER (WHERE held_by = 'unread') AS unread,
       count(*) FILTER (WHERE held_by = 'unknown') AS unknown
  FROM unanswered;

-- name: replay
-- Put the missing polls of one slot into the outbox again, with the same due seconds, released over the minute that begins $5 minutes
-- from now; at most $6 trackers in a row, $7 relays. The ledger counts them as not published. Runs in the transaction that locked the
-- slot. Indexes: trackers_place, poll_done_due, poll_slices_pkey.
WITH {missing}, second AS (
  SELECT second, partner_no, array_agg(id ORDER BY id) AS ids, array_agg(account_no ORDER BY id) AS account_nos,
         array_agg(external_id ORDER BY id) AS external_ids
    FROM missing GROUP BY second, partner_no
), put AS (
  INSERT INTO tickwright.scheduler_outbox (release_at, due_at, slot_id, partner_no, shard, ids, account_nos, external_ids)
  SELECT date_trunc('minute', clock_timestamp()) + make_interval(mins => $5, secs => second),
         $2::timestamptz + second * interval '1 second', $1, partner_no, partner_no % $7::integer,
         ids[k + 1 : k + $6], account_nos[k + 1 : k + $6], external_ids[k + 1 : k + $6]
    FROM second CROSS JOIN generate_series(0, cardinality(ids) - 1, $6::integer) AS k
   ORDER BY second, partner_no
), pending AS (
  SELECT partner_no, sum(n) AS n FROM (
    SELECT partner_no, count(*) AS n FROM missing GROUP BY partner_no
    UNION ALL
    SELECT o.partner_no, sum(cardinality(o.ids)) FROM tickwright.scheduler_outbox o
     WHERE o.slot_id = $1 AND o.due_at >= $2 AND o.due_at < $2::timestamptz + interval '1 minute' GROUP BY o.partner_no) AS both_kinds
   GROUP BY partner_no
), counted AS (
  UPDATE tickwright.poll_slices l SET published = least(l.published, l.selected - pending.n)
    FROM pending WHERE l.due_at = $2 AND l.slot_id = $1 AND l.partner_no = pending.partner_no
)
SELECT count(*) FILTER (WHERE held_by IS NULL) AS trackers, count(*) FILTER (WHERE held_by = 'unread') AS unread,
       count(*) FILTER (WHERE held_by = 'unknown') AS unknown
  FROM unanswered;

-- name: released
-- When the last row of a slot is released that waits $1 minutes. Small: no table.
SELECT date_trunc('minute', clock_timestamp()) + make_interval(mins => $1 + 1);

-- name: heat
-- Counts of the slots' minutes from $1 to before $2, in cells of $4 minutes, of all partners or of the number $3. A minute that is to
-- come, or late, counts the trackers of the slot's last selection. peak is the fullest ten seconds of a cell. Index: poll_slices_pkey.
WITH slot_minute AS (
  SELECT due_at, selected + skipped + deferred AS expected, selected, skipped, deferred, published, polled, late, superseded, coalesced, loads
    FROM tickwright.poll_slices
   WHERE due_at >= $1 AND due_at < $2 AND ($3::smallint IS NULL OR partner_no = $3)
  UNION ALL
  SELECT s.next_due_at, (SELECT coalesce(sum(load), 0) FROM unnest(l.loads) AS load), 0, 0, 0, 0, 0, 0, 0, false, l.loads
    FROM tickwright.poll_slots s
    JOIN tickwright.poll_slices l ON l.due_at = s.prev_due_at AND l.slot_id = s.slot_id AND NOT l.coalesced
   WHERE s.next_due_at >= $1 AND s.next_due_at < $2 AND ($3::smallint IS NULL OR l.partner_no = $3)
), minute AS (
  SELECT due_at, sum(expected) AS expected, sum(selected) AS selected, sum(skipped) AS skipped, sum(deferred) AS deferred,
         sum(published) AS published, sum(polled) AS polled, sum(late) AS late, sum(superseded) AS superseded,
         count(*) FILTER (WHERE coalesced) AS coalesced,
         greatest(sum(loads[1]), sum(loads[2]), sum(loads[3]), sum(loads[4]), sum(loads[5]), sum(loads[6])) AS peak,
         coalesce(sum(loads[1]), 0) + coalesce(sum(loads[2]), 0) + coalesce(sum(loads[3]), 0)
           + coalesce(sum(loads[4]), 0) + coalesce(sum(loads[5]), 0) + coalesce(sum(loads[6]), 0) AS load
    FROM slot_minute GROUP BY due_at
)
SELECT date_bin(make_interval(mins => $4), due_at, 'epoch') AS from_at,
       sum(expected)::bigint AS expected, sum(selected)::bigint AS selected, sum(skipped)::bigint AS skipped,
       sum(deferred)::bigint AS deferred, sum(published)::bigint AS published, sum(polled)::bigint AS polled, sum(late)::bigint AS late,
       sum(superseded)::bigint AS superseded, sum(coalesced)::bigint AS coalesced,
       coalesce(max(peak), 0)::bigint AS peak, sum(load)::bigint AS load, count(*) AS minutes
  FROM minute GROUP BY 1 ORDER BY 1;

-- name: count_last_minutes
-- How many slots have their last minute in each cell of $3 minutes from $1 to before $2; a replay can read these. Small: a row per slot.
SELECT date_bin(make_interval(mins => $3), prev_due_at, 'epoch') AS from_at, count(*) AS slots
  FROM tickwright.poll_slots WHERE prev_due_at >= $1 AND prev_due_at < $2 GROUP BY 1;
