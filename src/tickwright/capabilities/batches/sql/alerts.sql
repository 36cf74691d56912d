-- name: scheduler_stopped
-- Whether an occurrence of a batch is late by $2 while no process holds the producer's lease for longer than $1, or by $3; and
-- whether actions wait for longer than $2 while no process holds the checker's (dead-man). Small: while there is no checker,
-- a row per execution with actions that wait. Indexes: batches_due, executions_to_release, execution_chunks_done, job_config_pkey.
SELECT 'campaign-producer' AS subject,
       jsonb_build_object('what', 'Batches do not begin', 'late_s', round(date_part('epoch', clock_timestamp() - first.next_slot_at)::numeric))::text AS facts
  FROM (SELECT b.next_slot_at FROM tickwright.batches b WHERE b.next_slot_at IS NOT NULL ORDER BY b.next_slot_at LIMIT 1) AS first
 WHERE first.next_slot_at < clock_timestamp() - $3::interval
    OR (first.next_slot_at < clock_timestamp() - $2::interval
        AND NOT EXISTS (SELECT FROM tickwright.job_config c
                         WHERE c.job_name = 'campaign-producer' AND c.running AND c.lease_until > clock_timestamp() - $1::interval))
UNION ALL
SELECT 'campaign-checker',
       jsonb_build_object('what', 'Actions of executions do not leave', 'late_s',
                          round(date_part('epoch', clock_timestamp() - min(greatest(e.next_release_at, coalesce(e.finished_at, d.done_at))))::numeric))::text
  FROM tickwright.executions e
 CROSS JOIN LATERAL (SELECT c.done_at FROM tickwright.execution_chunks c
                      WHERE c.execution_id = e.id AND c.state = 'done' ORDER BY c.number LIMIT 1) AS d
 WHERE NOT EXISTS (SELECT FROM tickwright.job_config c
                    WHERE c.job_name = 'campaign-checker' AND c.running AND c.lease_until > clock_timestamp() - $1::interval)
   AND e.status IN ('IN_PROGRESS', 'FINISHED') AND e.chunks_released < e.chunks AND e.paused_at IS NULL
   AND (e.status = 'FINISHED' OR e.snapshot #>> '{action,release}' = 'chunk')
   AND greatest(e.next_release_at, coalesce(e.finished_at, d.done_at)) < clock_timestamp() - $2::interval
HAVING count(*) > 0;

-- name: execution_failed
-- Batches of which executions failed within $1 and were not retried: how many of the last 10,000 that failed, and why the last one did.
-- Index: executions_ended, batches_pkey.
SELECT b.name AS subject,
       jsonb_build_object('count', count(*), 'execution', (array_agg(f.id ORDER BY f.finished_at DESC))[1],
                          'error', left((array_agg(f.error_message ORDER BY f.finished_at DESC))[1], 300))::text AS facts
  FROM (SELECT id, batch_id, finished_at, error_message FROM tickwright.executions
         WHERE finished_at > clock_timestamp() - $1::interval AND status = 'EXCEPTION_OCCURRED' ORDER BY finished_at DESC LIMIT 10000) AS f
  JOIN tickwright.batches b ON b.id = f.batch_id
 GROUP BY b.name ORDER BY count(*) DESC LIMIT 1000;

-- name: execution_backlog
-- Batches with executions that have been due for longer than $1 and that no consumer has begun, though they are not paused. Counted up to 10,000.
-- Index: executions_to_begin, batches_pkey.
SELECT b.name AS subject,
       jsonb_build_object('count', count(*), 'execution', (array_agg(n.id ORDER BY n.slot_at))[1],
                          'late_s', round(date_part('epoch', clock_timestamp() - min(n.due_at))::numeric))::text AS facts
  FROM (SELECT id, batch_id, slot_at, due_at FROM tickwright.executions
         WHERE due_at < clock_timestamp() - $1::interval AND owner IS NULL AND status = 'NEW' AND paused_at IS NULL
         ORDER BY due_at LIMIT 10000) AS n
  JOIN tickwright.batches b ON b.id = n.batch_id
 GROUP BY b.name ORDER BY min(n.due_at) LIMIT 1000;

-- name: execution_stalled
-- Executions at work of which no chunk has been done for $1, though they are not paused and their rate would let one begin; it reads the hundred
-- chunks about the number of those that are done. A resume and the claim behind a retry count as a beginning: due_at, unless an attempt to cut the audience moved it. Index: executions_at_work, execution_chunks_pkey, batches_pkey.
SELECT b.name AS subject,
       jsonb_build_object('execution', e.id, 'done', e.chunks_done, 'chunks', e.chunks,
                          'idle_s', round(date_part('epoch', clock_timestamp() - m.moved_at)::numeric))::text AS facts
  FROM tickwright.executions e JOIN tickwright.batches b ON b.id = e.batch_id
 CROSS JOIN LATERAL (
   SELECT greatest(e.started_at, e.planned_at, CASE WHEN e.tries = 0 THEN e.due_at END, max(c.done_at)) AS moved_at FROM tickwright.execution_chunks c
    WHERE c.execution_id = e.id AND c.number BETWEEN e.chunks_done - 50 AND e.chunks_done + 49) AS m
 WHERE e.status = 'IN_PROGRESS' AND e.paused_at IS NULL AND e.next_chunk_at <= clock_timestamp()
   AND m.moved_at < clock_timestamp() - $1::interval
 LIMIT 1000;
