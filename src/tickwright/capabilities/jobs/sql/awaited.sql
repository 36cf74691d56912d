-- name: mark
-- Mark live jobs, whose end and progress then notify tickwright_results. Returns those of $1 that are live, and whether they are marked: a row that
-- another session has locked is not, because a wait for it would hold up the others, and their workers. A claim may have passed by a row of this
-- statement, so that it notifies a sleeping worker of due jobs, as their insert did. The worker of a running job is
-- notified, so that it writes the end at once. A job that waits for others is marked under the lock of its workflow,
-- so that no release meets its locked row. Index: scheduled_tasks_pkey.
WITH free AS MATERIALIZED (
  SELECT t.id FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY ($1::bigint[]) AND NOT t.awaited FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
  UPDATE ONLY tickwright.scheduled_tasks t SET awaited = true WHERE t.id = ANY (ARRAY (SELECT id FROM free))
  RETURNING t.id, t.status, coalesce(t.due_at, t.retry_at, t.execute_at) AS due_at
), told AS MATERIALIZED (
  SELECT count(pg_notify('tickwright_cancel', id::text)) AS notified FROM marked WHERE status = 'processing'
), passed_by AS MATERIALIZED (
  SELECT tickwright.notify_of_job(min(due_at)) AS done FROM marked
   WHERE status = 'pending' AND due_at <= clock_timestamp() + interval '1.5 seconds' HAVING count(*) > 0
), waiting AS MATERIALIZED (
  SELECT t.id, t.awaited, t.task_type, i.root_id
    FROM ONLY tickwright.scheduled_tasks_waiting t JOIN tickwright.workflows i ON i.id = t.workflow_id WHERE t.id = ANY ($1::bigint[])
), held AS MATERIALIZED (
  SELECT w.id FROM tickwright.workflows w
   WHERE w.id = ANY (ARRAY (SELECT root_id FROM waiting WHERE NOT awaited)) ORDER BY w.id FOR NO KEY UPDATE SKIP LOCKED
), unlocked AS MATERIALIZED (
  SELECT t.id FROM ONLY tickwright.scheduled_tasks_waiting t
   WHERE t.id = ANY (ARRAY (SELECT o.id FROM waiting o JOIN held h ON h.id = o.root_id)) FOR NO KEY UPDATE SKIP LOCKED
), marked_waiting AS (
  UPDATE ONLY tickwright.scheduled_tasks_waiting t SET awaited = true WHERE t.id = ANY (ARRAY (SELECT id FROM unlocked)) RETURNING t.id
)
SELECT t.id, t.awaited OR EXISTS (SELECT FROM marked m WHERE m.id = t.id) AS marked, coalesce(y.keep_history, true) AS keep_history
  FROM ONLY tickwright.scheduled_tasks t LEFT JOIN tickwright.task_types y ON y.name = t.task_type
 WHERE t.id = ANY ($1::bigint[]) AND (SELECT count(*) FROM passed_by) >= 0 AND (SELECT notified FROM told) >= 0
UNION ALL
SELECT t.id, t.awaited OR EXISTS (SELECT FROM marked_waiting m WHERE m.id = t.id), coalesce(y.keep_history, true)
  FROM waiting t LEFT JOIN tickwright.task_types y ON y.name = t.task_type;

-- name: read
-- The states of jobs that are awaited, live or ended. Indexes: the primary key of each table of the family.
SELECT t.awaited, t.id, t.status, t.attempts, t.progress, t.result, t.error_message, t.completed_at
  FROM tickwright.scheduled_tasks t WHERE t.id = ANY ($1::bigint[]);

-- name: mark_workflows
-- Mark workflows that have not ended, as jobs. Index: workflows_pkey.
WITH free AS MATERIALIZED (
  SELECT w.id FROM tickwright.workflows w WHERE w.id = ANY ($1::bigint[]) AND NOT w.awaited AND w.ended_at IS NULL FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
  UPDATE tickwright.workflows w SET awaited = true WHERE w.id = ANY (ARRAY (SELECT id FROM free)) RETURNING w.id
)
SELECT w.id, w.awaited OR EXISTS (SELECT FROM marked m WHERE m.id = w.id) AS marked, true AS keep_history
  FROM tickwright.workflows w WHERE w.id = ANY ($1::bigint[]) AND w.ended_at IS NULL;

-- name: read_workflows
-- The states of workflows, as those of jobs. Index: workflows_pkey.
SELECT w.awaited, w.id, w.state, NULL::integer AS attempts, NULL AS progress, NULL AS result, w.reason, w.ended_at
  FROM tickwright.workflows w WHERE w.id = ANY ($1::bigint[]);
