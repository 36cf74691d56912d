-- name: ping
-- Whether the database answers.
SELECT 1;

-- name: job_gauges
-- Per task type: due, running and upcoming jobs, each counted up to $1, and since when the oldest due one waits.
-- Index: scheduled_tasks_due, one bounded range a lane.
WITH RECURSIVE lane AS (
  (SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t ORDER BY t.task_type, t.priority LIMIT 1)
  UNION ALL
  SELECT n.task_type, n.priority
    FROM lane l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE (t.task_type, t.priority) > (l.task_type, l.priority) ORDER BY t.task_type, t.priority LIMIT 1) AS n
)
SELECT lane.task_type,
       sum(due.pending)::bigint AS due, sum(due.running)::bigint AS processing, sum(upcoming.jobs)::bigint AS upcoming,
       coalesce(max(due.oldest_s), 0) AS oldest_due_s
  FROM (SELECT * FROM lane LIMIT 1000) AS lane
 CROSS JOIN LATERAL (
   SELECT count(*) FILTER (WHERE d.status = 'pending') AS pending, count(*) FILTER (WHERE d.status = 'processing') AS running,
          date_part('epoch', clock_timestamp() - min(d.due) FILTER (WHERE d.status = 'pending')) AS oldest_s
     FROM (SELECT t.status, coalesce(t.retry_at, t.execute_at) AS due FROM ONLY tickwright.scheduled_tasks t
            WHERE t.task_type = lane.task_type AND t.priority = lane.priority
              AND coalesce(t.retry_at, t.execute_at) <= now()
            ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT $1) AS d) AS due
 CROSS JOIN LATERAL (
   SELECT count(*) AS jobs
     FROM (SELECT 1 FROM ONLY tickwright.scheduled_tasks t
            WHERE t.task_type = lane.task_type AND t.priority = lane.priority
              AND coalesce(t.retry_at, t.execute_at) > now()
            LIMIT $1) AS u) AS upcoming
 GROUP BY lane.task_type ORDER BY lane.task_type;

-- name: dead_letter_gauges
-- Dead letters of both kinds, counted up to $1. Indexes: scheduled_tasks_dead_pkey, outbox_dead_pkey.
SELECT (SELECT count(*) FROM (SELECT 1 FROM tickwright.scheduled_tasks_dead LIMIT $1) AS j) AS jobs,
       (SELECT count(*) FROM (SELECT 1 FROM tickwright.outbox_dead LIMIT $1) AS o) AS outbox,
       (SELECT count(*) FROM (SELECT 1 FROM tickwright.outbox LIMIT $1) AS w) AS outbox_waiting;

-- name: alert_gauges
-- Firing alerts by rule and severity. Index: alerts_firing.
SELECT rule, severity, count(*) AS firing FROM tickwright.alerts WHERE state = 'firing' GROUP BY rule, severity;
