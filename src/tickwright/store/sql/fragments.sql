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
