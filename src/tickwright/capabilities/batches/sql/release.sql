-- name: summary
-- The summary of an execution, for its on_finished. Index: executions_pkey.
SELECT jsonb_build_object('event', CASE e.status WHEN 'FINISHED' THEN 'execution.finished' ELSE 'execution.failed' END,
         'error_code', CASE WHEN e.status <> 'FINISHED' THEN e.error_code END, 'batch', b.name, 'kind', b.kind, 'execution_id', e.id, 'version', e.version,
         'slot_at', e.slot_at, 'status', e.status, 'members', e.members, 'seen', e.seen, 'selected', e.selected, 'missing', e.missing,
         'skipped', e.skipped, 'actions', e.actions, 'started_at', e.started_at, 'finished_at', e.finished_at)::text
  FROM tickwright.executions e JOIN tickwright.batches b ON b.id = e.batch_id WHERE e.id = $1;

-- name: is_full
-- Whether more than $2 messages to the destination $1 wait in the outbox. Index: outbox_lane, a walk that ends there; its order keeps a plan from
-- messages to others.
SELECT count(*) > $2::bigint
  FROM (SELECT FROM tickwright.outbox o
         WHERE hashtextextended(o.destination, 0) = hashtextextended($1, 0) AND o.destination = $1
         ORDER BY least(o.attempts, 1), o.next_at, o.id LIMIT $2::bigint + 1) AS waiting;

-- name: wait_for_room
-- The destination $1 is full: executions that release to it are due again in $2 seconds, and others go on. In a transaction of the checker's
-- lease. Index: executions_to_release, executions_pkey.
UPDATE tickwright.executions SET next_release_at = clock_timestamp() + make_interval(secs => $2)
 WHERE id = ANY (ARRAY (
   SELECT e.id FROM tickwright.executions e
    WHERE e.status IN ('IN_PROGRESS', 'FINISHED') AND e.chunks_released < e.chunks AND e.next_release_at <= clock_timestamp()
      AND e.snapshot #>> '{action,target}' = $1 FOR NO KEY UPDATE SKIP LOCKED));

-- name: next_chunk
-- The next chunk whose actions may leave: of a finished execution, or of one under way that says so. Those that are due longest come first.
-- In a transaction of the checker's lease. Index: executions_to_release, execution_chunks_done.
SELECT e.id, c.number, c.actions, b.name, e.snapshot #>> '{action,target}' AS target
  FROM tickwright.executions e JOIN tickwright.batches b ON b.id = e.batch_id
 CROSS JOIN LATERAL (
   SELECT d.number, d.actions FROM tickwright.execution_chunks d
    WHERE d.execution_id = e.id AND d.state = 'done' ORDER BY d.number LIMIT 1) AS c
 WHERE e.status IN ('IN_PROGRESS', 'FINISHED') AND e.chunks_released < e.chunks AND e.next_release_at <= clock_timestamp() AND e.paused_at IS NULL
   AND (e.status = 'FINISHED' OR e.snapshot #>> '{action,release}' = 'chunk')
 ORDER BY e.next_release_at LIMIT 1 FOR NO KEY UPDATE OF e SKIP LOCKED;

-- name: action
-- The document of an action for its receiver or function; b, e and a are its batch, its execution and itself. Part of statements.
jsonb_build_object('campaign', b.name, 'execution_id', e.id, 'version', e.version, 'slot_at', e.slot_at, 'client_id', a.client_id,
  'client', a.client, 'product_codes', coalesce(e.snapshot -> 'product_codes', '[]'::jsonb));

-- name: header_id
-- A client's id as a header can carry it: printable ASCII without a blank at either end as it is, everything else as utf8-hex- and the bytes of its
-- UTF-8 in hexadecimal digits; so is an id that begins like that itself, so that no two are equal. Part of a statement.
CASE WHEN a.client_id COLLATE "C" ~ '^[!-~]([ -~]*[!-~])?$' AND NOT starts_with(a.client_id, 'utf8-hex-') THEN a.client_id
     ELSE 'utf8-hex-' || encode(convert_to(a.client_id, 'UTF8'), 'hex') END;

-- name: put_messages
-- A message per action of a chunk; where $4, only of those that the outbox takes. After next_chunk. Index: execution_actions_chunk.
INSERT INTO tickwright.outbox (destination, key, payload, headers)
SELECT $3, a.execution_id || ':' || a.client_id,
       {action},
       jsonb_build_object('idempotency-key', 'action_' || a.execution_id || '_' || {header_id})
  FROM tickwright.execution_actions a JOIN tickwright.executions e ON e.id = a.execution_id JOIN tickwright.batches b ON b.id = e.batch_id
 WHERE a.execution_id = $1 AND a.chunk = $2 AND (NOT $4::boolean OR tickwright.json_fits({action}));

-- name: put_jobs
-- The same for an action that is a Python function: a one-shot job per client, which is its own outbox row. After next_chunk.
-- Index: execution_actions_chunk.
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, max_attempts)
SELECT clock_timestamp(), $3::text,
       {action},
       coalesce((SELECT t.max_attempts FROM tickwright.task_types t WHERE t.name = $3::text), 3)
  FROM tickwright.execution_actions a JOIN tickwright.executions e ON e.id = a.execution_id JOIN tickwright.batches b ON b.id = e.batch_id
 WHERE a.execution_id = $1 AND a.chunk = $2 AND (NOT $4::boolean OR tickwright.json_fits({action}));

-- name: too_large
-- One of these clients whose action no message can carry. After put_actions. Index: execution_actions_pkey.
SELECT a.client_id
  FROM tickwright.execution_actions a JOIN tickwright.executions e ON e.id = a.execution_id JOIN tickwright.batches b ON b.id = e.batch_id
 WHERE a.execution_id = $1 AND a.client_id = ANY ($2::text[]) AND NOT tickwright.json_fits({action}) LIMIT 1;

-- name: note_refused
-- Up to ten clients of a chunk whose actions are left out, before its other problems, of which the last ones make room. After next_chunk.
-- Index: execution_actions_chunk, execution_chunks_pkey.
UPDATE tickwright.execution_chunks c
   SET problems = jsonb_path_query_array(coalesce(
         (SELECT jsonb_agg(jsonb_build_object('client_id', left(r.client_id, 200), 'problem', $3::text))
            FROM (SELECT a.client_id
                    FROM tickwright.execution_actions a JOIN tickwright.executions e ON e.id = a.execution_id JOIN tickwright.batches b ON b.id = e.batch_id
                   WHERE a.execution_id = $1 AND a.chunk = $2 AND NOT tickwright.json_fits({action}) LIMIT 10) AS r), '[]')
         || coalesce(c.problems, '[]'), '$[0 to 9]')
 WHERE c.execution_id = $1 AND c.number = $2;

-- name: set_aside
-- PostgreSQL refuses what is to be released: the execution is tried again after $2 seconds, and others go on. In a transaction of the
-- checker's lease. Index: executions_pkey.
UPDATE tickwright.executions
   SET next_release_at = clock_timestamp() + make_interval(secs => $2), error_code = 'not_released', error_message = $3
 WHERE id = $1 AND status IN ('IN_PROGRESS', 'FINISHED');

-- name: put_job
-- One job of a type, for on_finished. In the transaction that ends it.
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, max_attempts)
SELECT clock_timestamp(), $1::text, $2::jsonb, coalesce((SELECT t.max_attempts FROM tickwright.task_types t WHERE t.name = $1::text), 3);

-- name: note_released
-- Its actions have left, $3 of them; next_release_at moves on by the execution's rate, at most a hundred years as in claim_chunk. After
-- next_chunk. Index: execution_chunks_pkey, executions_pkey.
WITH gone AS (
  UPDATE tickwright.execution_chunks SET state = 'released' WHERE execution_id = $1 AND number = $2 AND state = 'done'
  RETURNING execution_id, actions
)
UPDATE tickwright.executions e
   SET chunks_released = e.chunks_released + 1, released = e.released + $3::bigint,
       error_code = CASE WHEN e.error_code IS DISTINCT FROM 'not_released' THEN e.error_code END,
       error_message = CASE WHEN e.error_code IS DISTINCT FROM 'not_released' THEN e.error_message END,
       next_release_at = clock_timestamp()
         + make_interval(secs => CASE WHEN (e.snapshot ->> 'rate_per_s')::numeric > 0 THEN
             least(g.actions / least(greatest((e.snapshot ->> 'rate_per_s')::numeric, 1e-9), 1e12)::float8, 3155760000) ELSE 0 END)
  FROM gone g WHERE e.id = g.execution_id
RETURNING e.id;

-- name: next_release_in
-- Seconds until a chunk's actions may leave; NULL when none wait. Index: executions_to_release, execution_chunks_done.
SELECT extract(epoch FROM min(e.next_release_at) - clock_timestamp())::float8
  FROM tickwright.executions e
 WHERE e.status IN ('IN_PROGRESS', 'FINISHED') AND e.chunks_released < e.chunks AND e.paused_at IS NULL
   AND (e.status = 'FINISHED' OR e.snapshot #>> '{action,release}' = 'chunk')
   AND EXISTS (SELECT FROM tickwright.execution_chunks d WHERE d.execution_id = e.id AND d.state = 'done');
