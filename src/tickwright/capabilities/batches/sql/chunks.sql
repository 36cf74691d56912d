-- name: claim_execution
-- Claim one execution that is to be begun or cut into chunks, of what this process can do ($2): the oldest slot of its batch, while no other
-- one of it is at work. It gets the newest version of its batch, unless it had one already. One that has its chunks gets no owner.
-- An execution that begins, also again after a retry, is due from now on: the time for which it waited for others is no delay.
-- Nothing for a session that was lost, or refuses claims of the number $3. Index: executions_to_begin, executions_open, workers_pkey.
WITH mine AS MATERIALIZED (
  SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL AND claims_from <= $3 FOR KEY SHARE
), found AS (
  SELECT e.id
    FROM tickwright.executions e JOIN tickwright.batches b ON b.id = e.batch_id
   WHERE e.owner IS NULL AND (e.status = 'NEW' OR (e.status = 'IN_PROGRESS' AND e.planned_at IS NULL)) AND e.due_at <= clock_timestamp()
     AND e.paused_at IS NULL AND coalesce(e.served_by, b.served_by) = ANY ($2::text[]) AND EXISTS (SELECT FROM mine)
     AND NOT EXISTS (
       SELECT FROM tickwright.executions o
        WHERE o.batch_id = e.batch_id AND o.id <> e.id
          AND (o.status = 'IN_PROGRESS' OR (o.status = 'NEW' AND o.slot_at < e.slot_at)))
   ORDER BY e.due_at, e.slot_at LIMIT 1 FOR UPDATE OF e SKIP LOCKED
)
UPDATE tickwright.executions e
   SET status = 'IN_PROGRESS', owner = CASE WHEN e.planned_at IS NULL THEN $1::bigint END, fence = greatest(e.fence, (SELECT tickwright.fence_floor())) + 1,
       started_at = coalesce(e.started_at, clock_timestamp()),
       due_at = CASE e.status WHEN 'NEW' THEN clock_timestamp() ELSE e.due_at END, version = coalesce(e.version, b.version),
       served_by = coalesce(e.served_by, b.served_by),
       snapshot = coalesce(e.snapshot, b.definition || jsonb_build_object('product_codes', to_jsonb(b.product_codes)))
  FROM found f JOIN tickwright.batches b ON b.id = (SELECT x.batch_id FROM tickwright.executions x WHERE x.id = f.id)
 WHERE e.id = f.id
RETURNING e.id, e.batch_id, b.kind, b.name, e.version, e.slot_at, e.snapshot::text, e.fence, e.tries, e.lost, e.planned_at IS NULL AS is_to_be_planned;

-- name: claim_chunk
-- Claim the first waiting chunk of the execution with the oldest next_chunk_at, which moves on by the execution's rate, at most a hundred
-- years: later times fit into no timestamp, and the error would stop all other executions. Executions of the batches $4, and those that
-- another transaction has locked, are passed over. Nothing for a session that was lost, or refuses claims of the number $3.
-- Index: executions_at_work, execution_chunks_waiting, workers_pkey.
WITH mine AS MATERIALIZED (
  SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL AND claims_from <= $3 FOR KEY SHARE
), turn AS (
  SELECT e.id FROM tickwright.executions e
   WHERE e.status = 'IN_PROGRESS' AND e.planned_at IS NOT NULL AND e.paused_at IS NULL AND e.next_chunk_at <= clock_timestamp()
     AND e.due_at <= clock_timestamp() AND e.served_by = ANY ($2::text[]) AND e.batch_id <> ALL ($4::bigint[]) AND EXISTS (SELECT FROM mine)
     AND EXISTS (SELECT FROM tickwright.execution_chunks w
                  WHERE w.execution_id = e.id AND w.state = 'waiting' AND w.due_at <= clock_timestamp())
   ORDER BY e.next_chunk_at LIMIT 1 FOR NO KEY UPDATE OF e SKIP LOCKED
), found AS (
  SELECT c.execution_id, c.number
    FROM turn CROSS JOIN LATERAL (
      SELECT w.execution_id, w.number FROM tickwright.execution_chunks w
       WHERE w.execution_id = turn.id AND w.state = 'waiting' AND w.due_at <= clock_timestamp()
       ORDER BY w.number LIMIT 1 FOR UPDATE SKIP LOCKED) AS c
), claimed AS (
  UPDATE tickwright.execution_chunks c
     SET state = 'working', owner = $1, fence = greatest(c.fence, (SELECT tickwright.fence_floor())) + 1, began_at = clock_timestamp()
    FROM found f WHERE c.execution_id = f.execution_id AND c.number = f.number
  RETURNING c.execution_id, c.number, c.value, c.members, c.fence, c.tries, c.lost
), moved AS (
  UPDATE tickwright.executions e
     SET next_chunk_at = clock_timestamp()
       + make_interval(secs => CASE WHEN (e.snapshot ->> 'rate_per_s')::numeric > 0 THEN
           least(c.members / least(greatest((e.snapshot ->> 'rate_per_s')::numeric, 1e-9), 1e12)::float8, 3155760000) ELSE 0 END)
    FROM claimed c WHERE e.id = c.execution_id
  RETURNING e.id, e.batch_id, e.version, e.slot_at, e.snapshot
)
SELECT c.execution_id, c.number, c.value::text, c.fence, c.tries, c.lost, m.batch_id, b.kind, b.name, m.version, m.slot_at, m.snapshot::text
  FROM claimed c JOIN moved m ON m.id = c.execution_id JOIN tickwright.batches b ON b.id = m.batch_id;

-- name: next_in
-- Seconds until something that this process can do may be claimed, no chunks of the batches $2; NULL when there is nothing, below zero when
-- it is due. Index: executions_to_begin, executions_at_work, execution_chunks_waiting.
SELECT extract(epoch FROM min(found.at) - clock_timestamp())::float8
  FROM (
    SELECT min(e.due_at) AS at FROM tickwright.executions e JOIN tickwright.batches b ON b.id = e.batch_id
     WHERE e.owner IS NULL AND (e.status = 'NEW' OR (e.status = 'IN_PROGRESS' AND e.planned_at IS NULL)) AND e.paused_at IS NULL
       AND coalesce(e.served_by, b.served_by) = ANY ($1::text[])
       AND NOT EXISTS (
         SELECT FROM tickwright.executions o
          WHERE o.batch_id = e.batch_id AND o.id <> e.id
            AND (o.status = 'IN_PROGRESS' OR (o.status = 'NEW' AND o.slot_at < e.slot_at)))
    UNION ALL
    SELECT min(greatest(e.next_chunk_at, e.due_at, w.due_at)) FROM tickwright.executions e
     CROSS JOIN LATERAL (
       SELECT c.due_at FROM tickwright.execution_chunks c WHERE c.execution_id = e.id AND c.state = 'waiting' ORDER BY c.number LIMIT 1) AS w
     WHERE e.status = 'IN_PROGRESS' AND e.planned_at IS NOT NULL AND e.paused_at IS NULL AND e.served_by = ANY ($1::text[])
       AND e.batch_id <> ALL ($2::bigint[])) AS found;

-- name: lock_plan
-- The claim of a plan still holds. Fenced. Index: executions_pkey.
SELECT id FROM tickwright.executions WHERE id = $1 AND owner = $2 AND fence = $3 AND status = 'IN_PROGRESS' FOR NO KEY UPDATE;

-- name: put_chunks
-- The chunks of an execution, numbered from 0. After lock_plan. Index: execution_chunks_pkey.
INSERT INTO tickwright.execution_chunks (execution_id, number, value, members)
SELECT $1, u.place - 1, u.value::jsonb, u.members FROM unnest($2::text[], $3::bigint[]) WITH ORDINALITY AS u (value, members, place);

-- name: end_plan
-- The execution has its chunks; one without any is finished. After lock_plan. Index: executions_pkey.
UPDATE tickwright.executions
   SET planned_at = clock_timestamp(), owner = NULL, tries = 0, chunks = $2, members = $3,
       status = CASE WHEN $2 = 0 THEN 'FINISHED' ELSE status END, finished_at = CASE WHEN $2 = 0 THEN clock_timestamp() END
 WHERE id = $1
RETURNING status;

-- name: retry_plan
-- Cutting it failed: due again after $4 seconds. Fenced. Index: executions_pkey.
UPDATE tickwright.executions
   SET owner = NULL, tries = tries + 1, due_at = clock_timestamp() + make_interval(secs => $4), error_code = $5, error_message = $6
 WHERE id = $1 AND owner = $2 AND fence = $3 AND status = 'IN_PROGRESS' RETURNING id;

-- name: fail_plan
-- Cutting it failed permanently. Fenced. Index: executions_pkey.
UPDATE tickwright.executions
   SET status = 'EXCEPTION_OCCURRED', owner = NULL, finished_at = clock_timestamp(), error_code = $4, error_message = $5, error_trace = $6
 WHERE id = $1 AND owner = $2 AND fence = $3 AND status = 'IN_PROGRESS' RETURNING id;

-- name: release_plan
-- Release it as if it had not been claimed. Fenced. Index: executions_pkey.
UPDATE tickwright.executions SET owner = NULL WHERE id = $1 AND owner = $2 AND fence = $3 RETURNING id;

-- name: lock_chunk
-- First statement of the transaction that completes a chunk: its claim still holds. Fenced. Index: execution_chunks_pkey.
SELECT number FROM tickwright.execution_chunks
 WHERE execution_id = $1 AND number = $2 AND owner = $3 AND fence = $4 AND state = 'working' FOR UPDATE;

-- name: put_actions
-- One action per client and execution. After lock_chunk. Index: execution_actions_pkey.
INSERT INTO tickwright.execution_actions (execution_id, client_id, chunk, client)
SELECT $1, u.client_id, $2, u.client::jsonb FROM unnest($3::text[], $4::text[]) AS u (client_id, client)
ON CONFLICT DO NOTHING;

-- name: end_chunk
-- Its result. After lock_chunk. Index: execution_chunks_pkey.
UPDATE tickwright.execution_chunks
   SET state = 'done', owner = NULL, done_at = clock_timestamp(), seen = $3, selected = $4, missing = $5, skipped = $6, actions = $7, problems = $8::jsonb
 WHERE execution_id = $1 AND number = $2;

-- name: count_chunk
-- Count it, and end the execution with its last chunk; no row when it has ended otherwise, and then nothing of the chunk counts. Other chunks
-- of one that failed may still end, also when it is NEW again after a retry. Index: executions_pkey.
UPDATE tickwright.executions
   SET chunks_done = chunks_done + 1, seen = seen + $2, selected = selected + $3, missing = missing + $4, skipped = skipped + $5, actions = actions + $6,
       status = CASE WHEN chunks_done + 1 = chunks THEN 'FINISHED' ELSE status END,
       finished_at = CASE WHEN chunks_done + 1 = chunks THEN clock_timestamp() ELSE finished_at END
 WHERE id = $1 AND status IN ('NEW', 'IN_PROGRESS', 'EXCEPTION_OCCURRED')
RETURNING status;

-- name: retry_chunk
-- An attempt failed: due again after $5 seconds. Fenced. Index: execution_chunks_pkey.
UPDATE tickwright.execution_chunks
   SET state = 'waiting', owner = NULL, tries = tries + 1, due_at = clock_timestamp() + make_interval(secs => $5),
       problems = jsonb_build_array(jsonb_build_object('problem', format('%s (%s)', $7::text, $6::text)))
 WHERE execution_id = $1 AND number = $2 AND owner = $3 AND fence = $4 AND state = 'working' RETURNING number;

-- name: fail_chunk
-- An attempt failed and was the last: the execution ends with it, unless it has ended. Fenced. Index: execution_chunks_pkey, executions_pkey.
WITH ours AS (
  UPDATE tickwright.execution_chunks SET state = 'waiting', owner = NULL, tries = tries + 1
   WHERE execution_id = $1 AND number = $2 AND owner = $3 AND fence = $4 AND state = 'working' RETURNING execution_id
)
UPDATE tickwright.executions e
   SET status = 'EXCEPTION_OCCURRED', finished_at = clock_timestamp(), error_code = $5, error_message = $6, error_trace = $7
  FROM ours WHERE e.id = ours.execution_id AND e.status = 'IN_PROGRESS' RETURNING e.id;

-- name: release_chunk
-- Release it as if it had not been claimed: it counts neither as a try nor as lost. Fenced. Index: execution_chunks_pkey.
UPDATE tickwright.execution_chunks SET state = 'waiting', owner = NULL
 WHERE execution_id = $1 AND number = $2 AND owner = $3 AND fence = $4 AND state = 'working' RETURNING number;

-- name: postpone_chunk
-- Release it: it is due again after $5 seconds, which costs no try; $6 sessions were lost with it. Fenced. Index: execution_chunks_pkey.
UPDATE tickwright.execution_chunks
   SET state = 'waiting', owner = NULL, due_at = clock_timestamp() + make_interval(secs => $5), lost = lost + $6
 WHERE execution_id = $1 AND number = $2 AND owner = $3 AND fence = $4 AND state = 'working' RETURNING number;

-- name: confirm_chunks
-- Those of these chunks that $4 still has, of executions that go on. Index: execution_chunks_pkey, executions_pkey.
SELECT c.execution_id, c.number
  FROM unnest($1::bigint[], $2::integer[], $3::bigint[]) AS u (execution_id, number, fence)
  JOIN tickwright.execution_chunks c ON c.execution_id = u.execution_id AND c.number = u.number AND c.fence = u.fence AND c.owner = $4
  JOIN tickwright.executions e ON e.id = c.execution_id AND e.status IN ('NEW', 'IN_PROGRESS', 'EXCEPTION_OCCURRED');

-- name: confirm_plans
-- Those of these executions that $3 still has, to be cut. Index: executions_pkey.
SELECT e.id FROM unnest($1::bigint[], $2::bigint[]) AS u (id, fence)
  JOIN tickwright.executions e ON e.id = u.id AND e.fence = u.fence AND e.owner = $3 AND e.status = 'IN_PROGRESS';

-- name: reclaim_chunks
-- In the transaction that declares their sessions lost: due again at once. Index: execution_chunks_owner.
UPDATE tickwright.execution_chunks SET state = 'waiting', owner = NULL, lost = lost + 1 WHERE owner = ANY ($1::bigint[]);

-- name: reclaim_plans
-- The same for executions that were being cut. Index: executions_owner.
UPDATE tickwright.executions SET owner = NULL, lost = lost + 1 WHERE owner = ANY ($1::bigint[]);

-- name: release_unknown_chunks
-- Release the chunks of $1 that it does not know of: the answer to a claim was lost, so nothing was begun. Known is the chunk $3[i] of the
-- execution $2[i] at the fence $4[i]. After refuse_claims. Index: execution_chunks_owner.
WITH back AS (
  UPDATE tickwright.execution_chunks c SET state = 'waiting', owner = NULL
   WHERE c.owner = $1
     AND NOT EXISTS (SELECT FROM unnest($2::bigint[], $3::integer[], $4::bigint[]) AS u (execution_id, number, fence)
                      WHERE u.execution_id = c.execution_id AND u.number = c.number AND u.fence = c.fence)
  RETURNING 1
)
SELECT count(*) FROM back;

-- name: release_unknown_plans
-- The same for executions that are to be cut; known is $2[i] at the fence $3[i]. Index: executions_owner.
WITH back AS (
  UPDATE tickwright.executions e SET owner = NULL
   WHERE e.owner = $1
     AND NOT EXISTS (SELECT FROM unnest($2::bigint[], $3::bigint[]) AS u (id, fence) WHERE u.id = e.id AND u.fence = e.fence)
  RETURNING 1
)
SELECT count(*) FROM back;

-- name: wake
-- Wake consumers: something may be claimed that could not be before. No table.
SELECT pg_notify('tickwright_batches', '');

-- name: held
-- What the session $1 holds, at most $2 rows of each kind. Indexes: execution_chunks_owner, executions_owner.
(SELECT 'execution' AS kind, e.id, b.name, NULL::integer AS number, e.started_at AS since_at, e.fence, NULL::bigint AS count
   FROM tickwright.executions e JOIN tickwright.batches b ON b.id = e.batch_id WHERE e.owner = $1 LIMIT $2)
UNION ALL
(SELECT 'chunk', c.execution_id, b.name, c.number, c.began_at, c.fence, c.members
   FROM tickwright.execution_chunks c JOIN tickwright.executions e ON e.id = c.execution_id JOIN tickwright.batches b ON b.id = e.batch_id
  WHERE c.owner = $1 LIMIT $2);

-- name: owned
-- Whether the session $1 owns an execution or a chunk. Indexes: execution_chunks_owner, executions_owner.
SELECT EXISTS (SELECT FROM tickwright.execution_chunks WHERE owner = $1) OR EXISTS (SELECT FROM tickwright.executions WHERE owner = $1);
