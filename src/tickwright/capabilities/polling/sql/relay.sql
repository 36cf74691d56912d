-- name: open_shard
-- Create the row of a shard, if it is new. Index: poll_relays_pkey.
INSERT INTO tickwright.poll_relays (shard) VALUES ($1) ON CONFLICT DO NOTHING;

-- name: numbers
-- The newest batch number that was given, and the newest that is published. Index: poll_relays_pkey.
SELECT batch_no, published_no FROM tickwright.poll_relays WHERE shard = $1;

-- name: block
-- Note that the relay of shard $1 is blocked, with the code $2 and the text $3; the instant stays while the code stays. Fenced by the
-- transaction's lease. Index: poll_relays_pkey.
UPDATE tickwright.poll_relays
   SET stands_since = CASE WHEN stands_code = $2 THEN stands_since ELSE clock_timestamp() END, stands_code = $2, stands_text = $3
 WHERE shard = $1;

-- name: unblock
-- Note that the relay is no longer blocked. Fenced by the transaction's lease. Index: poll_relays_pkey.
UPDATE tickwright.poll_relays SET stands_since = NULL, stands_code = NULL, stands_text = NULL WHERE shard = $1 AND stands_code IS NOT NULL;

-- name: drop_superseded
-- Of the first $2 released rows of a shard, which "freeze" would read, drop those with trackers whose next poll is due, at most $3:
-- after an outage a tracker is polled once. The ledger counts them. Frozen rows stay, and so do rows of unknown slots. Fenced by the
-- transaction's lease. Index: scheduler_outbox_waiting, poll_slots_pkey.
WITH waiting AS MATERIALIZED (
  SELECT id, due_at, slot_id FROM tickwright.scheduler_outbox
   WHERE shard = $1 AND batch_no IS NULL AND release_at <= (SELECT clock_timestamp())
   ORDER BY release_at, id LIMIT $2
), gone AS (
  DELETE FROM tickwright.scheduler_outbox
   WHERE id = ANY (ARRAY (
     SELECT w.id FROM waiting w
      WHERE w.due_at <= clock_timestamp() - interval '1 minute'
        AND w.due_at + (SELECT make_interval(mins => s.interval_minutes) FROM tickwright.poll_slots s
                         WHERE s.slot_id = w.slot_id) <= clock_timestamp()
      LIMIT $3))
  RETURNING date_trunc('minute', due_at, 'UTC') AS due_at, slot_id, partner_no, cardinality(ids) AS trackers
), counted AS (
  SELECT due_at, slot_id, partner_no, sum(trackers)::integer AS trackers FROM gone GROUP BY due_at, slot_id, partner_no
), slices AS (
  UPDATE tickwright.poll_slices s SET superseded = s.superseded + c.trackers
    FROM counted c WHERE s.due_at = c.due_at AND s.slot_id = c.slot_id AND s.partner_no = c.partner_no
)
SELECT coalesce(sum(trackers), 0)::integer AS trackers, (SELECT count(*) FROM gone)::integer AS rows FROM counted;

-- name: drop_queued
-- Drop superseded rows of the queue that no consumer holds, whether a consumer serves the partner or not: of the first $1 rows of each
-- partner, at most $2. Polls that an earlier holder made are not counted, and no poll counts twice: the ledger counts at most those
-- that were selected and not polled. Rows of a slot that does not exist, or due more than a day ahead, are not from a relay; they are
-- dropped too, because they would stay and fill the first $1. Fenced by the transaction's lease.
-- Index: poll_queue_waiting, poll_slots_pkey, poll_done_due.
WITH waiting AS MATERIALIZED (
  SELECT q.seq, q.due_at, q.slot_id
    FROM tickwright.partners p
   CROSS JOIN LATERAL (
     (SELECT w.seq, w.due_at, w.slot_id FROM tickwright.poll_queue w
       WHERE w.partner_no = p.partner_no AND w.owner IS NULL
         AND w.due_at <= (SELECT clock_timestamp() - interval '1 minute')
       ORDER BY w.due_at, w.seq LIMIT $1)
     UNION ALL
     (SELECT w.seq, '-infinity', w.slot_id -- dropped, whatever its slot's interval
        FROM tickwright.poll_queue w
       WHERE w.partner_no = p.partner_no AND w.owner IS NULL
         AND w.due_at > (SELECT clock_timestamp() + interval '1 day')
       ORDER BY w.due_at, w.seq LIMIT $1)) AS q
), gone AS (
  DELETE FROM tickwright.poll_queue
   WHERE seq = ANY (ARRAY (
     SELECT q.seq FROM tickwright.poll_queue q
      WHERE q.owner IS NULL AND q.seq = ANY (ARRAY (
        SELECT w.seq FROM waiting w
         WHERE w.due_at + coalesce((SELECT make_interval(mins => s.interval_minutes) FROM tickwright.poll_slots s
                                     WHERE s.slot_id = w.slot_id), interval '0') <= clock_timestamp()
         LIMIT $2))
        FOR UPDATE SKIP LOCKED))
  RETURNING due_at, slot_id, partner_no, ids
), counted AS (
  SELECT date_trunc('minute', g.due_at, 'UTC') AS due_at, g.slot_id, g.partner_no, count(*)::integer AS trackers
    FROM gone g CROSS JOIN LATERAL unnest(g.ids) AS x (id)
   WHERE x.id <> ALL (ARRAY (SELECT unnest(d.ids) FROM tickwright.poll_done d
                              WHERE d.slot_id = g.slot_id AND d.due_at = g.due_at AND d.partner_no = g.partner_no))
   GROUP BY 1, 2, 3
), slices AS (
  UPDATE tickwright.poll_slices s SET superseded = greatest(s.superseded, least(s.superseded + c.trackers, s.selected - s.polled))
    FROM counted c WHERE s.due_at = c.due_at AND s.slot_id = c.slot_id AND s.partner_no = c.partner_no
)
SELECT coalesce(sum(trackers), 0)::integer AS trackers FROM counted;

-- name: freeze
-- Give the released rows of a shard, oldest first, the next batch number, until the batch has $2 trackers or $3 rows; none while a
-- batch waits to be published. Rows are found by their state and not by their id, so a row that commits late is in a later batch.
-- Fenced by the transaction's lease. Index: scheduler_outbox_waiting.
WITH waiting AS MATERIALIZED (
  SELECT id, release_at, cardinality(ids) AS trackers FROM tickwright.scheduler_outbox
   WHERE shard = $1 AND batch_no IS NULL AND release_at <= clock_timestamp()
   ORDER BY release_at, id LIMIT $3 FOR UPDATE SKIP LOCKED
), counted AS (
  SELECT id, sum(trackers) OVER (ORDER BY release_at, id ROWS UNBOUNDED PRECEDING) - trackers AS before FROM waiting
), numbered AS (
  UPDATE tickwright.poll_relays SET batch_no = batch_no + 1
   WHERE shard = $1 AND batch_no = published_no AND EXISTS (SELECT FROM waiting)
  RETURNING batch_no
)
UPDATE tickwright.scheduler_outbox o SET batch_no = numbered.batch_no
  FROM numbered
 WHERE o.id = ANY (ARRAY (SELECT id FROM counted WHERE before < $2));

-- name: read_frozen
-- The batch of a shard that waits to be published; every attempt sends its rows in this order. Index: scheduler_outbox_batch.
SELECT r.batch_no, o.due_at, o.slot_id, coalesce(p.name, o.partner_no::text) AS partner, o.ids, o.account_nos, o.external_ids
  FROM tickwright.poll_relays r
  JOIN tickwright.scheduler_outbox o ON o.shard = r.shard AND o.batch_no = r.batch_no
  LEFT JOIN tickwright.partners p ON p.partner_no = o.partner_no
 WHERE r.shard = $1 AND r.batch_no > r.published_no
 ORDER BY o.id;

-- name: mark_published
-- Mark the batches of a shard up to number $2 as published on the topic $3: delete their rows, and count them in the slice ledger.
-- Fenced by the transaction's lease, and once per number. For explain and for lists it also writes: the batches of each slice; the
-- offsets of this batch ($4 partitions; in each of $5 from $6 to $7; none when only the position proved it); and the ends of the
-- partitions, with earlier ends that the group has not passed, one per 10 s or per sixteenth of the lag. An end that goes back means
-- that the topic was created again: then the group's old position is deleted. The last $8 batches are kept.
-- Index: scheduler_outbox_batch, poll_slices_pkey, poll_batches_pkey, poll_ends_pkey, poll_reads_pkey.
WITH relay AS (
  UPDATE tickwright.poll_relays SET published_no = $2, published_at = clock_timestamp()
   WHERE shard = $1 AND published_no < $2 AND batch_no >= $2
  RETURNING shard
), gone AS (
  DELETE FROM tickwright.scheduler_outbox o USING relay
   WHERE o.shard = relay.shard AND o.shard = $1 AND o.batch_no <= $2
  RETURNING date_trunc('minute', o.due_at, 'UTC') AS due_at, o.slot_id, o.partner_no, cardinality(o.ids) AS trackers, o.release_at
), counted AS (
  SELECT due_at, slot_id, partner_no, sum(trackers)::integer AS trackers FROM gone GROUP BY due_at, slot_id, partner_no
), slices AS (
  UPDATE tickwright.poll_slices s
     SET published = s.published + c.trackers, shard = $1, last_batch_no = $2,
         first_batch_no = CASE WHEN s.shard = $1 THEN least(s.first_batch_no, $2) ELSE $2 END
    FROM counted c WHERE s.due_at = c.due_at AND s.slot_id = c.slot_id AND s.partner_no = c.partner_no
), batch AS (
  INSERT INTO tickwright.poll_batches AS b (shard, batch_no, topic, first_release_at, last_release_at, published_at, partition_count,
                                            partitions, first_offsets, last_offsets)
  SELECT $1, $2, $3::text, min(release_at), max(release_at), clock_timestamp(), $4, $5::integer[], $6::bigint[], $7::bigint[]
    FROM gone WHERE $3 <> '' HAVING count(*) > 0
      ON CONFLICT (shard, batch_no) DO NOTHING
), forgotten AS (
  DELETE FROM tickwright.poll_batches WHERE shard = $1 AND batch_no <= $2 - $8::integer
), recreated AS (
  DELETE FROM tickwright.poll_reads r
   USING relay CROSS JOIN unnest($5::integer[], $7::bigint[]) AS u (partition, last_offset)
    JOIN tickwright.poll_ends e ON e.topic = $3 AND e.partition = u.partition AND e.shard = $1 AND e.end_offset > u.last_offset + 1
   WHERE r.topic = e.topic AND r.partition = e.partition AND r.position > u.last_offset + 1
), ends AS (
  INSERT INTO tickwright.poll_ends AS e (topic, partition, shard, end_offset, published_at, mark_ends, mark_ats)
  SELECT $3, u.partition, $1, u.last_offset + 1, clock_timestamp(), ARRAY[u.last_offset + 1], ARRAY[clock_timestamp()]
    FROM relay CROSS JOIN unnest($5::integer[], $7::bigint[]) AS u (partition, last_offset)
      ON CONFLICT (topic, partition, shard) DO UPDATE
     SET end_offset = excluded.end_offset, published_at = excluded.published_at,
         (mark_ends, mark_ats) = (
           WITH kept AS MATERIALIZED (
             SELECT m.ends, m.at FROM unnest(e.mark_ends, e.mark_ats) AS m (ends, at)
              WHERE m.ends < excluded.end_offset -- a greater end is of a topic that was created again
                AND m.ends > coalesce((SELECT r.position FROM tickwright.poll_reads r
                                        WHERE r.topic = e.topic AND r.partition = e.partition), 0)
           ), marks AS (
             SELECT ends, at FROM kept
             UNION ALL
             SELECT excluded.end_offset, excluded.published_at
              WHERE (SELECT coalesce(max(at) <= excluded.published_at - greatest(interval '10 seconds', (excluded.published_at - min(at)) / 16),
                                     true) FROM kept)
           )
           SELECT array_agg(ends ORDER BY at), array_agg(at ORDER BY at) FROM marks)
)
SELECT coalesce(sum(trackers), 0)::integer AS trackers FROM counted;

-- name: find_batches
-- The batches in which a poll of slot $1, minute $2 and partner $3 may have gone to Kafka, those with rows released at $4 first; at
-- most $5. One row without a batch when they are deleted. Index: poll_slices_pkey, poll_batches_pkey.
SELECT l.first_batch_no, l.last_batch_no, b.batch_no, b.topic, b.published_at, b.partition_count, b.partitions, b.first_offsets,
       b.last_offsets, coalesce($4 BETWEEN b.first_release_at AND b.last_release_at, false) AS fits
  FROM tickwright.poll_slices l
  LEFT JOIN tickwright.poll_batches b ON b.shard = l.shard AND b.batch_no BETWEEN l.first_batch_no AND l.last_batch_no
 WHERE l.slot_id = $1 AND l.due_at = $2 AND l.partner_no = $3 AND l.first_batch_no IS NOT NULL
 ORDER BY fits DESC, b.batch_no LIMIT $5;

-- name: group_at
-- The position of the consumers in partition $2 of topic $1, and the name of its reader. Index: poll_ends_pkey, poll_reads_pkey.
SELECT position, read_to, seen_at, reader_name FROM tickwright.poll_lags WHERE topic = $1 AND partition = $2;

-- name: list_partitions
-- The lag of the consumers, per partition that polls went to within a week (the longest interval). Small: a row per partition.
-- Index: poll_ends_pkey.
SELECT topic, partition, end_offset, position, lag, read_to, unfinished_since, reader_name AS reader, seen_at
  FROM tickwright.poll_lags WHERE published_at > clock_timestamp() - interval '7 days' ORDER BY topic, partition LIMIT 1000;

-- name: move_to_queue
-- Without Kafka: publish the released rows of a shard, oldest first and at most $2, by moving them into the queue inside PostgreSQL,
-- in one transaction. Fenced by the transaction's lease. Index: scheduler_outbox_waiting.
WITH gone AS (
  DELETE FROM tickwright.scheduler_outbox
   WHERE id = ANY (ARRAY (SELECT id FROM tickwright.scheduler_outbox
                           WHERE shard = $1 AND batch_no IS NULL AND release_at <= clock_timestamp()
                           ORDER BY release_at, id LIMIT $2 FOR UPDATE SKIP LOCKED))
  RETURNING *
), queued AS (
  INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids)
  SELECT due_at, slot_id, partner_no, ids, account_nos, external_ids FROM gone ORDER BY release_at, id
), counted AS (
  SELECT date_trunc('minute', due_at, 'UTC') AS due_at, slot_id, partner_no, sum(cardinality(ids))::integer AS trackers
    FROM gone GROUP BY 1, 2, 3
), slices AS (
  UPDATE tickwright.poll_slices s SET published = s.published + c.trackers
    FROM counted c WHERE s.due_at = c.due_at AND s.slot_id = c.slot_id AND s.partner_no = c.partner_no
)
SELECT coalesce(sum(trackers), 0)::integer AS trackers, (SELECT count(*) FROM gone)::integer AS moved FROM counted;

-- name: next_release_s
-- Seconds until the next row of a shard is released; no row when none waits. Index: scheduler_outbox_waiting.
SELECT date_part('epoch', release_at - clock_timestamp()) FROM tickwright.scheduler_outbox
 WHERE shard = $1 AND batch_no IS NULL ORDER BY release_at, id LIMIT 1;

-- name: list_relays
-- Each shard's relay for operators: what waits, what is frozen, what is published. Bounded: a shard's waiting rows are those of a
-- minute, unless the relay is blocked. Index: scheduler_outbox_waiting, scheduler_outbox_batch.
SELECT r.shard, r.batch_no, r.published_no, r.published_at,
       w.trackers AS waiting, w.released, w.oldest_release_at,
       f.trackers AS frozen, r.stands_since, r.stands_code, r.stands_text
  FROM tickwright.poll_relays r
  CROSS JOIN LATERAL (
    SELECT coalesce(sum(cardinality(o.ids)), 0)::bigint AS trackers,
           coalesce(sum(cardinality(o.ids)) FILTER (WHERE o.release_at <= clock_timestamp()), 0)::bigint AS released,
           min(o.release_at) AS oldest_release_at
      FROM tickwright.scheduler_outbox o WHERE o.shard = r.shard AND o.batch_no IS NULL) AS w
  CROSS JOIN LATERAL (
    SELECT coalesce(sum(cardinality(o.ids)), 0)::bigint AS trackers
      FROM tickwright.scheduler_outbox o WHERE o.shard = r.shard AND o.batch_no IS NOT NULL) AS f
 ORDER BY r.shard;

-- name: adopt_position
-- Set the numbers to an operator's decision: every batch up to number $2 is on the topic, none above is. It raises the newest number
-- too, when the database was restored without numbers that it gave, and unblocks the relay. Index: poll_relays_pkey.
UPDATE tickwright.poll_relays SET batch_no = greatest(batch_no, $2), stands_since = NULL, stands_code = NULL, stands_text = NULL
 WHERE shard = $1;
