-- name: unknown_task_type
-- Types that nobody knows, with a job that is due for longer than $1. Index: scheduled_tasks_due, two probes a lane.
WITH RECURSIVE lane AS (
  (SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t ORDER BY t.task_type, t.priority LIMIT 1)
  UNION ALL
  SELECT n.task_type, n.priority
    FROM lane l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE (t.task_type, t.priority) > (l.task_type, l.priority) ORDER BY t.task_type, t.priority LIMIT 1) AS n
)
SELECT DISTINCT lane.task_type AS subject, '{}'::jsonb::text AS facts
  FROM (SELECT * FROM lane LIMIT 1000) AS lane
 WHERE NOT EXISTS (SELECT FROM tickwright.task_types k WHERE k.name = lane.task_type)
   AND EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t
                WHERE t.task_type = lane.task_type AND t.priority = lane.priority
                  AND coalesce(t.retry_at, t.execute_at) <= clock_timestamp() - $1::interval);

-- name: task_type_gone
-- Types whose endpoint answered 410. Small: a row per type.
SELECT name AS subject, jsonb_build_object('gone_at', gone_at)::text AS facts
  FROM tickwright.task_types WHERE gone_at IS NOT NULL LIMIT 1000;

-- name: dead_letters
-- Dead letters of the last $1, per type or destination; counted up to 10,000.
-- Indexes: scheduled_tasks_dead_at, outbox_dead_at.
SELECT subject, jsonb_build_object('count', count(*))::text AS facts
  FROM ((SELECT task_type::text AS subject FROM tickwright.scheduled_tasks_dead
          WHERE completed_at > clock_timestamp() - $1::interval ORDER BY completed_at DESC LIMIT 10000)
        UNION ALL
        (SELECT left(destination, 200) FROM tickwright.outbox_dead
          WHERE died_at > clock_timestamp() - $1::interval ORDER BY died_at DESC LIMIT 10000)) AS d
 GROUP BY subject LIMIT 1000;

-- name: lateness
-- Types that may run, whose oldest due job waits for longer than $1 while a worker is alive.
-- Index: scheduled_tasks_due, two probes a lane.
WITH RECURSIVE lane AS (
  (SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t ORDER BY t.task_type, t.priority LIMIT 1)
  UNION ALL
  SELECT n.task_type, n.priority
    FROM lane l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE (t.task_type, t.priority) > (l.task_type, l.priority) ORDER BY t.task_type, t.priority LIMIT 1) AS n
)
SELECT lane.task_type AS subject,
       jsonb_build_object('late_s', round(max(date_part('epoch', clock_timestamp() - oldest.due))::numeric))::text AS facts
  FROM (SELECT * FROM lane LIMIT 1000) AS lane
  JOIN tickwright.task_types k ON k.name = lane.task_type AND k.paused_at IS NULL AND k.gone_at IS NULL
 CROSS JOIN LATERAL (
   SELECT coalesce(t.retry_at, t.execute_at) AS due FROM ONLY tickwright.scheduled_tasks t
    WHERE t.task_type = lane.task_type AND t.priority = lane.priority AND t.status = 'pending'
    ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT 1) AS oldest
 WHERE oldest.due < clock_timestamp() - $1::interval
   AND EXISTS (SELECT FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
                  AND 'worker' = ANY (w.roles))
 GROUP BY lane.task_type;

-- name: no_live_worker
-- Whether a job that may run is due for longer than $1 while no worker is alive. Index: scheduled_tasks_due.
WITH RECURSIVE lane AS (
  (SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t ORDER BY t.task_type, t.priority LIMIT 1)
  UNION ALL
  SELECT n.task_type, n.priority
    FROM lane l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE (t.task_type, t.priority) > (l.task_type, l.priority) ORDER BY t.task_type, t.priority LIMIT 1) AS n
)
SELECT 'workers' AS subject, '{}'::jsonb::text AS facts
 WHERE NOT EXISTS (SELECT FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
                      AND 'worker' = ANY (w.roles))
   AND EXISTS (SELECT FROM (SELECT * FROM lane LIMIT 1000) AS lane
                 JOIN tickwright.task_types k ON k.name = lane.task_type AND k.paused_at IS NULL AND k.gone_at IS NULL
                WHERE EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t
                               WHERE t.task_type = lane.task_type AND t.priority = lane.priority
                                 AND coalesce(t.retry_at, t.execute_at) < clock_timestamp() - $1::interval));

-- name: session_lost
-- Sessions that were declared lost within the last $1. Small: a row per session.
SELECT name || ' #' || id AS subject, jsonb_build_object('lost_at', lost_at)::text AS facts
  FROM tickwright.workers WHERE lost_at > clock_timestamp() - $1::interval LIMIT 1000;

-- name: old_snapshot
-- Backends and prepared transactions that hold back the oldest visible row for longer than $1, by pid.
SELECT 'pid ' || pid AS subject,
       jsonb_build_object('age_s', round(date_part('epoch', clock_timestamp() - xact_start)::numeric), 'state', state,
                          'application', application_name)::text AS facts
  FROM pg_stat_activity
 WHERE xact_start < clock_timestamp() - $1::interval AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
   AND backend_type = 'client backend'
UNION ALL
SELECT 'prepared ' || gid, jsonb_build_object('age_s', round(date_part('epoch', clock_timestamp() - prepared)::numeric))::text
  FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - $1::interval AND database = current_database()
 LIMIT 1000;

-- name: dead_rows
-- Tables of ours with more than $1 dead rows, and more dead than live ones.
SELECT relname AS subject, jsonb_build_object('dead', n_dead_tup, 'live', n_live_tup)::text AS facts
  FROM pg_stat_user_tables
 WHERE schemaname = 'tickwright' AND n_dead_tup > $1::bigint AND n_dead_tup > n_live_tup LIMIT 1000;

-- name: threads_stuck
-- Live sessions that report synchronous handlers which were stopped and did not return. Small: a row per session.
SELECT name || ' #' || id AS subject, jsonb_build_object('count', facts -> 'threads_stuck')::text AS facts
  FROM tickwright.workers
 WHERE lost_at IS NULL AND lease_until > clock_timestamp() AND jsonb_typeof(facts -> 'threads_stuck') = 'number'
   AND (facts ->> 'threads_stuck')::numeric > 0 LIMIT 1000;

-- name: clock
-- The database's clock, to be compared with a monotonic one.
SELECT date_part('epoch', clock_timestamp());

-- name: fire
-- Open an alert, or say that it is still seen: one row per rule and subject, however often. Index: alerts_firing.
INSERT INTO tickwright.alerts AS a (rule, subject, severity, summary, state, facts)
SELECT $1, u.subject, $2, u.summary, 'firing', u.facts::jsonb
  FROM unnest($3::text[], $4::text[], $5::text[]) AS u (subject, summary, facts)
ON CONFLICT (rule, subject) WHERE state = 'firing'
   DO UPDATE SET seen_at = clock_timestamp(), summary = excluded.summary, facts = excluded.facts
RETURNING a.subject, a.xmax = 0 AS is_new;

-- name: resolve
-- Resolve the alerts of a rule whose subject is no longer in trouble. Index: alerts_firing.
UPDATE tickwright.alerts SET state = 'resolved', resolved_at = clock_timestamp()
 WHERE rule = $1 AND state = 'firing' AND subject <> ALL ($2::text[])
RETURNING subject;
