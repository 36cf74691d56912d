-- name: lane
-- Every task type with a live job, and its priorities: a look per lane, from each to the next, however many jobs it has. It stands behind
-- WITH RECURSIVE, as text and no function, so that each statement is planned as a whole. Index: scheduled_tasks_due.
lane AS (
  (SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t ORDER BY t.task_type, t.priority LIMIT 1)
  UNION ALL
  SELECT n.task_type, n.priority
    FROM lane l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE (t.task_type, t.priority) > (l.task_type, l.priority) ORDER BY t.task_type, t.priority LIMIT 1) AS n
);

-- name: runnable
-- The same of the task types that may run, however many others have jobs.
runnable AS (
  SELECT top.task_type, top.priority
    FROM tickwright.task_types k CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = k.name ORDER BY t.priority LIMIT 1) AS top
   WHERE k.paused_at IS NULL AND k.gone_at IS NULL
  UNION ALL
  SELECT n.task_type, n.priority
    FROM runnable l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = l.task_type AND t.priority > l.priority ORDER BY t.priority LIMIT 1) AS n
);
