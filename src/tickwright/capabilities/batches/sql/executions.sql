-- name: shown
-- What a caller sees of an execution e of the batch b.
e.id, b.name, b.kind, e.slot_at, e.started_by, e.status, e.version, e.created_at, e.started_at, e.planned_at, e.finished_at, e.paused_at,
       e.chunks, e.chunks_done, e.chunks_released, e.members, e.seen, e.selected, e.missing, e.skipped, e.actions, e.released, e.error_code,
       e.error_message, e.ended_why

-- name: list_executions
-- A page of executions before the id $1, newest first; $2: only of this kind, $3: in one of these states. It looks at $5 of them at most: last_id is
-- where it stopped, if it did. Index: executions_pkey, batches_pkey.
SELECT found.*, searched.last_id
  FROM (SELECT CASE WHEN $2::text IS NOT NULL OR $3::text[] IS NOT NULL THEN
                 (SELECT id FROM tickwright.executions WHERE id < $1 ORDER BY id DESC OFFSET $5 - 1 LIMIT 1) END AS last_id) AS searched
  LEFT JOIN LATERAL (
    SELECT {shown}
      FROM (SELECT * FROM tickwright.executions WHERE id < $1 ORDER BY id DESC LIMIT $5) AS e JOIN tickwright.batches b ON b.id = e.batch_id
     WHERE ($2::text IS NULL OR b.kind = $2) AND ($3::text[] IS NULL OR e.status = ANY ($3))
     ORDER BY e.id DESC LIMIT $4) AS found ON true
 ORDER BY found.id DESC;

-- name: list_executions_of
-- The same of one batch ($2 its kind, $6 its name), before the slot $1; last_slot_at is where it stopped.
-- Index: batches_name_key, executions_batch_id_slot_at_key.
SELECT found.*, searched.last_slot_at
  FROM (SELECT id, name, kind FROM tickwright.batches WHERE kind = $2 AND name = $6) AS b
 CROSS JOIN LATERAL (
   SELECT CASE WHEN $3::text[] IS NOT NULL THEN
            (SELECT slot_at FROM tickwright.executions
              WHERE batch_id = b.id AND slot_at < coalesce($1, 'infinity'::timestamptz) ORDER BY slot_at DESC OFFSET $5 - 1 LIMIT 1) END AS last_slot_at
 ) AS searched
  LEFT JOIN LATERAL (
    SELECT {shown}
      FROM (SELECT * FROM tickwright.executions WHERE batch_id = b.id AND slot_at < coalesce($1, 'infinity'::timestamptz) ORDER BY slot_at DESC LIMIT $5) AS e
     WHERE $3::text[] IS NULL OR e.status = ANY ($3)
     ORDER BY e.slot_at DESC LIMIT $4) AS found ON true
 ORDER BY found.slot_at DESC;

-- name: get_execution
-- One execution, what it was begun with, and the clock. Index: executions_pkey, batches_pkey.
SELECT {shown}, e.error_trace, e.snapshot::text AS snapshot, e.tries, e.lost, e.due_at, e.next_chunk_at, e.next_release_at, e.owner,
       coalesce(e.served_by, b.served_by) AS served_by, b.id AS batch_id, clock_timestamp() AS now, e.snapshot #>> '{action,target}' AS target,
       e.chunks_done > e.chunks_released AND (e.status = 'FINISHED' OR (e.status = 'IN_PROGRESS' AND e.snapshot #>> '{action,release}' = 'chunk')) AS is_releasing
  FROM tickwright.executions e JOIN tickwright.batches b ON b.id = e.batch_id WHERE e.id = $1;

-- name: pace
-- How fast the last chunks went: those about the number $2, a hundred at most, in members per second. Index: execution_chunks_pkey.
SELECT sum(seen) / nullif(extract(epoch FROM max(done_at) - min(began_at)), 0)::float8 AS seen_per_s
  FROM tickwright.execution_chunks
 WHERE execution_id = $1 AND number BETWEEN $2::integer - 50 AND $2::integer + 49 AND state IN ('done', 'released');

-- name: problems
-- Examples of what could not be judged, from the first chunks that have some. Index: execution_chunks_problems.
SELECT number AS chunk, problems::text AS problems FROM tickwright.execution_chunks
 WHERE execution_id = $1 AND problems IS NOT NULL ORDER BY number LIMIT 10;

-- name: has_left
-- Whether an action a has left: its chunk c is released, and it was not too large, which is among the problems of the chunk. Part of statements.
c.state = 'released' AND (c.problems IS NULL OR tickwright.json_fits({action}));

-- name: list_actions
-- A page of the actions of an execution behind the client $2, and whether they have left. Index: execution_actions_pkey, execution_chunks_pkey,
-- executions_pkey, batches_pkey.
SELECT a.client_id, a.chunk, a.client::text AS client, {has_left} AS released
  FROM tickwright.execution_actions a JOIN tickwright.execution_chunks c ON c.execution_id = a.execution_id AND c.number = a.chunk
  JOIN tickwright.executions e ON e.id = a.execution_id JOIN tickwright.batches b ON b.id = e.batch_id
 WHERE a.execution_id = $1 AND a.client_id > $2 ORDER BY a.client_id LIMIT $3;

-- name: get_action
-- The action of one client. Index: execution_actions_pkey, execution_chunks_pkey, executions_pkey, batches_pkey.
SELECT a.client_id, a.chunk, a.client::text AS client, {has_left} AS released
  FROM tickwright.execution_actions a JOIN tickwright.execution_chunks c ON c.execution_id = a.execution_id AND c.number = a.chunk
  JOIN tickwright.executions e ON e.id = a.execution_id JOIN tickwright.batches b ON b.id = e.batch_id
 WHERE a.execution_id = $1 AND a.client_id = $2;

-- name: lock_execution
-- Lock one execution. After lock_batch_of. Index: executions_pkey.
SELECT id, status, paused_at, chunks, chunks_released FROM tickwright.executions WHERE id = $1 FOR NO KEY UPDATE;

-- name: lock_open
-- Lock the open executions of a batch. After lock_batch. Index: executions_open.
SELECT id, status FROM tickwright.executions WHERE batch_id = $1 AND status IN ('NEW', 'IN_PROGRESS') ORDER BY slot_at FOR NO KEY UPDATE;

-- name: lock_releasing
-- Lock the executions of a batch that are finished and still release. After lock_batch. Index: executions_to_release.
SELECT id, status FROM tickwright.executions
 WHERE batch_id = $1 AND status = 'FINISHED' AND chunks_released < chunks ORDER BY slot_at FOR NO KEY UPDATE;

-- name: start
-- An execution for this moment; its slot is later than all before it, so that executions keep their order. After lock_batch.
-- Index: executions_batch_id_slot_at_key.
INSERT INTO tickwright.executions (batch_id, slot_at, started_by)
SELECT $1, greatest(clock_timestamp(),
         (SELECT e.slot_at + interval '1 microsecond' FROM tickwright.executions e WHERE e.batch_id = $1 ORDER BY e.slot_at DESC LIMIT 1)), $2
RETURNING id, slot_at, status;

-- name: end_executions
-- End executions: claims on them are lost, and actions that are not released stay unreleased. After lock_open or lock_execution. Index: executions_pkey.
UPDATE tickwright.executions
   SET status = $2, finished_at = coalesce(finished_at, clock_timestamp()), paused_at = NULL, owner = NULL, fence = fence + 1, ended_why = $3
 WHERE id = ANY ($1::bigint[]) RETURNING id, status;

-- name: pause
-- Pause: no chunk of it is begun and none released until it is resumed. After lock_execution. Index: executions_pkey.
UPDATE tickwright.executions SET paused_at = clock_timestamp() WHERE id = $1;

-- name: resume
-- Resume: it is due from now on, so that the time of its pause is no delay. After lock_execution. Index: executions_pkey.
UPDATE tickwright.executions SET paused_at = NULL, due_at = greatest(due_at, clock_timestamp()) WHERE id = $1;

-- name: retry
-- Retry a failed one: it goes on at the chunks that are not done, under the version with which it began. After lock_execution. Index: executions_pkey.
UPDATE tickwright.executions
   SET status = 'NEW', finished_at = NULL, paused_at = NULL, due_at = clock_timestamp(), next_chunk_at = clock_timestamp(), tries = 0, lost = 0,
       error_code = NULL, error_message = NULL, error_trace = NULL
 WHERE id = $1;

-- name: retry_chunks
-- The chunks that are not done have all their attempts again. After retry, whose lock keeps claims away. Index: execution_chunks_waiting.
UPDATE tickwright.execution_chunks SET tries = 0, lost = 0, due_at = clock_timestamp() WHERE execution_id = $1 AND state = 'waiting';
