-- name: mark
-- Mark live jobs, whose end and progress then notify tickwright_results. Returns those of $1 that are live, and whether they are marked: a row that
-- another session has locked is not, because a wait for it would hold up the others, and their workers. A claim may have passed by a row of this
-- statement, so that it notifies a sleeping worker of due jobs, as their insert did. Index: scheduled_tasks_pkey.
WITH free AS MATERIALIZED (
  SELECT t.id FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY ($1::bigint[]) AND NOT t.awaited FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
  UPDATE ONLY tickwright.scheduled_tasks t SET awaited = true WHERE t.id = ANY (ARRAY (SELECT id FROM free))
  RETURNING t.id, t.status, coalesce(t.due_at, t.retry_at, t.execute_at) AS due_at
), passed_by AS MATERIALIZED (
  SELECT tickwright.notify_of_job(min(due_at)) AS done FROM marked
   WHERE status = 'pending' AND due_at <= clock_timestamp() + interval '1.5 seconds' HAVING count(*) > 0
)
SELECT t.id, t.awaited OR EXISTS (SELECT FROM marked m WHERE m.id = t.id) AS marked, coalesce(y.keep_history, true) AS keep_history
  FROM ONLY tickwright.scheduled_tasks t LEFT JOIN tickwright.task_types y ON y.name = t.task_type
 WHERE t.id = ANY ($1::bigint[]) AND (SELECT count(*) FROM passed_by) >= 0;

-- name: read
-- The states of jobs that are awaited, live or ended. Indexes: the primary key of each table of the family.
SELECT t.awaited, t.id, t.status, t.attempts, t.progress, t.result, t.error_message, t.completed_at
  FROM tickwright.scheduled_tasks t WHERE t.id = ANY ($1::bigint[]);
