-- name: due_batches
-- Batches with an occurrence that is due. In a transaction of the producer's lease. Index: batches_due.
SELECT b.id, b.name, b.date_time_execution, b.time_zone, b.restartable, b.restartable_unit, b.restartable_unit_type, b.cron, b.overlap,
       b.misfire, b.misfire_max, b.misfire_grace, b.next_slot_at, clock_timestamp() AS now
  FROM tickwright.batches b
 WHERE b.next_slot_at <= clock_timestamp() ORDER BY b.next_slot_at LIMIT $1 FOR NO KEY UPDATE OF b SKIP LOCKED;

-- name: open_batches
-- Those of these batches that have an open execution: read after their rows are locked, because an operator may have started one until then.
-- After due_batches. Index: executions_open.
SELECT DISTINCT batch_id FROM tickwright.executions WHERE batch_id = ANY ($1::bigint[]) AND status IN ('NEW', 'IN_PROGRESS');

-- name: end_open
-- Open executions of these batches end, because a newer slot replaces them. After due_batches. Index: executions_open.
UPDATE tickwright.executions
   SET status = 'STOPPED', finished_at = clock_timestamp(), owner = NULL, fence = fence + 1, ended_why = 'a newer occurrence took its place'
 WHERE batch_id = ANY ($1::bigint[]) AND status IN ('NEW', 'IN_PROGRESS');

-- name: put_executions
-- One execution per batch and slot, also beside another producer. After due_batches. Index: executions_batch_id_slot_at_key.
INSERT INTO tickwright.executions (batch_id, slot_at)
SELECT u.batch_id, u.slot_at FROM unnest($1::bigint[], $2::timestamptz[]) AS u (batch_id, slot_at)
ON CONFLICT (batch_id, slot_at) DO NOTHING RETURNING id;

-- name: put_skips
-- Why slots have no execution. After due_batches. Index: execution_skips_pkey.
INSERT INTO tickwright.execution_skips (batch_id, slot_at, until_at, slots, reason)
SELECT * FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::integer[], $5::text[]) ON CONFLICT DO NOTHING;

-- name: move_slots
-- Their next slots. After due_batches. Index: batches_pkey.
UPDATE tickwright.batches b SET next_slot_at = u.next_slot_at
  FROM unnest($1::bigint[], $2::timestamptz[]) AS u (id, next_slot_at) WHERE b.id = u.id;

-- name: next_slot_in
-- Seconds until a batch is due; NULL when none ever is. Index: batches_due.
SELECT extract(epoch FROM min(next_slot_at) - clock_timestamp())::float8 FROM tickwright.batches WHERE next_slot_at IS NOT NULL;
