-- name: list
-- Every queue that has a task type or is paused. Due jobs are counted up to 1,000 per claim range, in 1,000 claim ranges; running ones are those of the
-- living workers' last heartbeats. Small: a row per queue. Index: scheduled_tasks_due, one bounded scan per claim range.
WITH RECURSIVE {known}, kind AS MATERIALIZED (
  SELECT t.name, t.target, t.queue, t.needs FROM tickwright.task_types t
   WHERE $1::text IS NULL OR t.queue = $1 ORDER BY t.name LIMIT 10000
), live AS MATERIALIZED (
  SELECT w.id, w.roles, w.facts FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
), due AS MATERIALIZED (
  SELECT kind.queue, sum(counted.jobs)::bigint AS jobs
    FROM (SELECT * FROM known LIMIT 1000) AS claim_range JOIN kind ON kind.name = claim_range.task_type
   CROSS JOIN LATERAL (
     SELECT count(*) AS jobs
       FROM (SELECT FROM ONLY tickwright.scheduled_tasks t
              WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority AND t.status = 'pending'
                AND coalesce(t.retry_at, t.execute_at) <= now()
              ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT 1000) AS first) AS counted
   GROUP BY kind.queue
), running AS MATERIALIZED (
  SELECT kind.queue, sum((reported.running #>> '{}')::numeric)::bigint AS jobs
    FROM live CROSS JOIN kind CROSS JOIN LATERAL (SELECT live.facts #> ARRAY['counters', 'types', kind.name, 'running'] AS running) AS reported
   WHERE jsonb_typeof(reported.running) = 'number' GROUP BY kind.queue
), named AS (
  SELECT kind.queue AS name, array_agg(kind.name ORDER BY kind.name) AS types FROM kind GROUP BY kind.queue
)
SELECT coalesce(named.name, q.name) AS name, coalesce(named.types, '{}') AS types, q.paused_at, coalesce(q.version, 0) AS version, q.updated_at,
       coalesce(due.jobs, 0) AS due, coalesce(running.jobs, 0) AS running,
       (SELECT count(*) FROM live WHERE EXISTS (SELECT FROM kind WHERE kind.queue = named.name
                                                   AND tickwright.serves(live.roles, live.facts, kind.target, kind.name, kind.queue, kind.needs))) AS workers
  FROM named
  FULL JOIN (SELECT * FROM tickwright.queues WHERE $1::text IS NULL OR name = $1) AS q ON q.name = named.name
  LEFT JOIN due ON due.queue = named.name
  LEFT JOIN running ON running.queue = named.name
 WHERE named.name IS NOT NULL OR q.paused_at IS NOT NULL OR $1::text IS NOT NULL
 ORDER BY 1 LIMIT 10000;

-- name: lock
-- Serialize changes of one queue that has a row. Index: queues_pkey.
SELECT name FROM tickwright.queues WHERE name = $1 FOR UPDATE;

-- name: pause
-- Pause a queue: the jobs of its types wait until it is enabled. Index: queues_pkey.
INSERT INTO tickwright.queues AS q (name, paused_at) VALUES ($1, clock_timestamp())
ON CONFLICT (name) DO UPDATE
   SET paused_at = coalesce(q.paused_at, excluded.paused_at), version = q.version + 1, updated_at = clock_timestamp();

-- name: enable
-- Run a queue's jobs again. Index: queues_pkey.
UPDATE tickwright.queues SET paused_at = NULL, version = version + 1, updated_at = clock_timestamp() WHERE name = $1;
