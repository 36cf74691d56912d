-- name: explain_open
-- The open executions of a batch, the oldest slot first. Index: executions_open.
SELECT id, slot_at, status, created_at, started_at, planned_at, paused_at, chunks, chunks_done
  FROM tickwright.executions WHERE batch_id = $1 AND status IN ('NEW', 'IN_PROGRESS') ORDER BY slot_at LIMIT 10;

-- name: explain_last
-- The last execution of a batch that has ended. Index: executions_batch_id_slot_at_key.
SELECT id, slot_at, status, finished_at, error_code, error_message, ended_why
  FROM tickwright.executions WHERE batch_id = $1 AND status NOT IN ('NEW', 'IN_PROGRESS') ORDER BY slot_at DESC LIMIT 1;

-- name: explain_skips
-- The last occurrences that got no execution. Index: execution_skips_pkey.
SELECT slot_at, until_at, slots, reason, noted_at FROM tickwright.execution_skips WHERE batch_id = $1 ORDER BY slot_at DESC LIMIT 3;

-- name: explain_slot
-- What became of the occurrence $2: its execution, or the skip that it belongs to. Index: executions_batch_id_slot_at_key, execution_skips_pkey.
SELECT e.id, e.status, e.created_at, e.finished_at, e.ended_why, s.reason, s.slots, s.slot_at AS skipped_from, s.until_at, s.noted_at
  FROM (SELECT $1::bigint AS batch_id, $2::timestamptz AS slot_at) AS asked
  LEFT JOIN tickwright.executions e ON e.batch_id = asked.batch_id AND e.slot_at = asked.slot_at
  LEFT JOIN LATERAL (
    SELECT k.slot_at, k.until_at, k.slots, k.reason, k.noted_at FROM tickwright.execution_skips k
     WHERE k.batch_id = asked.batch_id AND k.slot_at <= asked.slot_at ORDER BY k.slot_at DESC LIMIT 1) AS s ON s.until_at >= asked.slot_at;

-- name: explain_lives
-- How many processes live that produce, and that can execute what a batch needs ($3). Small: a row per process.
SELECT count(*) FILTER (WHERE $1 = ANY (w.roles)) AS producers, count(*) FILTER (WHERE $2 = ANY (w.roles)) AS consumers,
       count(*) FILTER (WHERE $2 = ANY (w.roles) AND w.facts -> 'batches' ? $3) AS able
  FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp();

-- name: explain_waiting
-- The first chunk of an execution that waits. Index: execution_chunks_waiting.
SELECT w.tries, w.lost, w.due_at, w.number, w.problems::text AS problems
  FROM tickwright.execution_chunks w WHERE w.execution_id = $1 AND w.state = 'waiting' ORDER BY w.number LIMIT 1;

-- name: explain_working
-- Who works on its chunks now. Index: execution_chunks_owner. Small: what the live processes hold.
SELECT w.name AS worker, count(*) AS chunks, min(c.began_at) AS since
  FROM tickwright.workers w JOIN tickwright.execution_chunks c ON c.owner = w.id AND c.execution_id = $1
 WHERE w.lost_at IS NULL GROUP BY w.name ORDER BY w.name LIMIT 20;

-- name: explain_before
-- What the execution has to wait for: another one of its batch that is at work, or an older one that is to be. Index: executions_open.
SELECT o.id, o.status, o.slot_at FROM tickwright.executions e JOIN tickwright.executions o ON o.batch_id = e.batch_id AND o.id <> e.id
 WHERE e.id = $1 AND (o.status = 'IN_PROGRESS' OR (o.status = 'NEW' AND o.slot_at < e.slot_at)) ORDER BY o.slot_at LIMIT 1;
