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

-- name: execution_gauges
-- The backlog of executions: to be begun, since when, at work, and actions of finished ones that have not left; each counted over $1 rows at most.
-- Index: executions_to_begin, executions_at_work, executions_to_release.
SELECT waiting.executions AS waiting, coalesce(waiting.oldest_s, 0) AS oldest_s, working.executions AS working,
       coalesce(releasing.actions, 0)::bigint AS unreleased
  FROM (SELECT count(*) AS executions, date_part('epoch', clock_timestamp() - min(due_at)) AS oldest_s
          FROM (SELECT due_at FROM tickwright.executions
                 WHERE owner IS NULL AND (status = 'NEW' OR (status = 'IN_PROGRESS' AND planned_at IS NULL)) AND due_at <= clock_timestamp()
                 ORDER BY due_at LIMIT $1) AS w) AS waiting
 CROSS JOIN (SELECT count(*) AS executions
               FROM (SELECT FROM tickwright.executions WHERE status = 'IN_PROGRESS' LIMIT $1) AS i) AS working
 CROSS JOIN (SELECT sum(actions - released) AS actions
               FROM (SELECT actions, released FROM tickwright.executions
                      WHERE status IN ('IN_PROGRESS', 'FINISHED') AND chunks_released < chunks LIMIT $1) AS r) AS releasing;

-- name: freshness_gauges
-- How fresh accounts are kept within their last intervals: what share of the polls was fresh, how many are judged, how many
-- lag, and the worst $1. Small: a row per account.
WITH lag AS MATERIALIZED (SELECT account_id, lag, polls, fresh, stale_since FROM tickwright.judged_accounts)
SELECT (SELECT (sum(fresh) / nullif(sum(polls), 0))::float8 FROM lag) AS share,
       (SELECT count(*) FROM lag) AS judged, (SELECT count(*) FROM lag WHERE stale_since IS NOT NULL) AS lagging,
       ARRAY (SELECT account_id FROM lag ORDER BY lag DESC, account_id LIMIT $1) AS accounts,
       ARRAY (SELECT lag FROM lag ORDER BY lag DESC, account_id LIMIT $1) AS ratios;

-- name: alert_gauges
-- Firing alerts by rule and severity. Index: alerts_firing.
SELECT rule, severity, count(*) AS firing FROM tickwright.alerts WHERE state = 'firing' GROUP BY rule, severity;

-- name: poll_lag_gauges
-- How far the consumers are behind, per partition that polls went to within a week, and since when the oldest unfinished one
-- waits. Small: a row per partition. Index: poll_ends_pkey.
SELECT topic, partition, lag, coalesce(date_part('epoch', clock_timestamp() - unfinished_since), 0) AS oldest_s
  FROM tickwright.poll_lags WHERE published_at > clock_timestamp() - interval '7 days' ORDER BY topic, partition LIMIT 1000;
