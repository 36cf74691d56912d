-- name: take_over
-- Make session $2 the reader of the partitions $3 of topic $1. Waits for effects of the former reader, and voids its
-- later ones. A session that was declared lost takes nothing. Index: poll_partitions_pkey.
INSERT INTO tickwright.poll_partitions AS p (topic, partition, owner, epoch)
SELECT $1, wanted.partition, $2, (SELECT tickwright.fence_floor()) + 1
  FROM unnest($3::integer[]) AS wanted (partition)
 WHERE EXISTS (SELECT FROM tickwright.workers WHERE id = $2 AND lost_at IS NULL)
 ORDER BY wanted.partition
    ON CONFLICT (topic, partition) DO UPDATE SET owner = excluded.owner, epoch = greatest(p.epoch + 1, excluded.epoch)
RETURNING partition, epoch;

-- name: hold
-- Lock the partitions $2 of topic $1 that still have the epochs $3 and a session that is not lost, in the order of
-- take_over. The lock fences every effect of the transaction. Index: poll_partitions_pkey, workers_pkey.
SELECT p.partition, p.epoch
  FROM tickwright.poll_partitions p
  JOIN unnest($2::integer[], $3::bigint[]) AS u (partition, epoch) ON p.partition = u.partition AND p.epoch = u.epoch
  JOIN tickwright.workers w ON w.id = p.owner AND w.lost_at IS NULL
 WHERE p.topic = $1 AND p.partition = ANY ($2::integer[])
 ORDER BY p.partition FOR SHARE OF p;

-- name: partners
-- Numbers of all partners by name. The table is small. Index: none.
SELECT name, partner_no FROM tickwright.partners;

-- name: slots
-- The slots of the trackers $1 that are still polled, for records without a slot (relays up to 0.1). Index:
-- trackers_pkey.
SELECT id, place / 60 AS slot_id FROM tickwright.trackers WHERE id = ANY ($1::bigint[]) AND place IS NOT NULL;

-- name: accounts
-- Numbers of accounts by name. Index: polling_schedule_config_pkey.
SELECT account_id, account_no FROM tickwright.polling_schedule_config WHERE account_id = ANY ($1::text[]);

-- name: count_superseded
-- Numbers, from 1, of the superseded bundles, with slot $1[i], second $2[i], partner $3[i] and $4[i] polls: their
-- trackers are due again. The slice ledger counts them, at most those selected and not polled, because polls can be
-- read again. Bundles of a missing slot or due more than a minute ahead are superseded too: no relay sent them, and
-- polls due ahead count in no ledger. Index: poll_slots_pkey, poll_slices_pkey.
WITH superseded AS MATERIALIZED (
  SELECT bundle.n, date_trunc('minute', bundle.due_at, 'UTC') AS due_at, bundle.slot_id, bundle.partner_no, bundle.polls
    FROM unnest($1::integer[], $2::timestamptz[], $3::smallint[], $4::integer[])
         WITH ORDINALITY AS bundle (slot_id, due_at, partner_no, polls, n)
    LEFT JOIN tickwright.poll_slots s USING (slot_id)
   WHERE bundle.due_at + coalesce(make_interval(mins => s.interval_minutes), interval '0') <= clock_timestamp()
      OR bundle.due_at > clock_timestamp() + interval '1 minute'
), counted AS (
  UPDATE tickwright.poll_slices l SET superseded = greatest(l.superseded, least(l.superseded + o.polls, l.selected - l.polled))
    FROM (SELECT due_at, slot_id, partner_no, sum(polls)::integer AS polls FROM superseded
           WHERE due_at <= clock_timestamp() GROUP BY 1, 2, 3) AS o
   WHERE l.due_at = o.due_at AND l.slot_id = o.slot_id AND l.partner_no = o.partner_no
)
SELECT n FROM superseded;

-- name: write_reads
-- Write the progress of the partitions $2 of topic $1: the first poll without an effect $4, and the end of the read
-- records $5. Only while they have the epochs $3, so that a former reader writes nothing. Index: poll_partitions_pkey,
-- poll_reads_pkey.
INSERT INTO tickwright.poll_reads AS r (topic, partition, position, read_to, seen_at)
SELECT p.topic, p.partition, u.position, u.read_to, clock_timestamp()
  FROM tickwright.poll_partitions p
  JOIN unnest($2::integer[], $3::bigint[], $4::bigint[], $5::bigint[]) AS u (partition, epoch, position, read_to)
    ON p.partition = u.partition AND p.epoch = u.epoch
 WHERE p.topic = $1 AND p.partition = ANY ($2::integer[])
 ORDER BY p.partition FOR SHARE OF p
    ON CONFLICT (topic, partition) DO UPDATE
   SET position = excluded.position, read_to = excluded.read_to, seen_at = excluded.seen_at;

-- name: park
-- Add polls of second $1, slot $2, partner $3 to the queue inside PostgreSQL. Runs in a transaction that locks their
-- partition. Index: poll_queue_pkey.
INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids) VALUES ($1, $2, $3, $4, $5, $6);
