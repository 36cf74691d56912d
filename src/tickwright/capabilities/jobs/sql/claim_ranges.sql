-- name: claim_range
-- Every task type with a live job, and its priorities: one probe a claim range, from each to the next, whatever its number of jobs. To be placed after
-- WITH RECURSIVE. It is text and not a function, so that PostgreSQL plans each statement as a whole. Index: scheduled_tasks_due.
claim_range AS (
  (SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t ORDER BY t.task_type, t.priority LIMIT 1)
  UNION ALL
  SELECT n.task_type, n.priority
    FROM claim_range l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE (t.task_type, t.priority) > (l.task_type, l.priority) ORDER BY t.task_type, t.priority LIMIT 1) AS n
);

-- name: runnable
-- The same for the task types that may run, whatever the number of others with jobs.
runnable AS (
  SELECT top.task_type, top.priority
    FROM tickwright.task_types k CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = k.name ORDER BY t.priority LIMIT 1) AS top
   WHERE k.paused_at IS NULL AND k.gone_at IS NULL
     AND NOT EXISTS (SELECT FROM tickwright.queues q WHERE q.name = k.queue AND q.paused_at IS NOT NULL)
  UNION ALL
  SELECT n.task_type, n.priority
    FROM runnable l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = l.task_type AND t.priority > l.priority ORDER BY t.priority LIMIT 1) AS n
);

-- name: known
-- The same for registered task types in any state; the first claim range of each comes before the second of any. Index: scheduled_tasks_due.
known AS (
  SELECT top.task_type, top.priority
    FROM tickwright.task_types k CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = k.name ORDER BY t.priority LIMIT 1) AS top
  UNION ALL
  SELECT n.task_type, n.priority
    FROM known l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = l.task_type AND t.priority > l.priority ORDER BY t.priority LIMIT 1) AS n
);

-- name: claimable
-- The claim ranges in which claimed jobs can be: of registered task types in any state, and of a thousand others, because a type may be deleted while
-- its jobs run. The cost of releasing jobs does not grow with the number of unknown types.
{known}, claimable AS MATERIALIZED (
  SELECT * FROM known UNION (SELECT * FROM claim_range LIMIT 1000)
);

-- name: counted
-- The claim ranges that figures count: a thousand of registered types, and the first thousand of all by name. Every role that may insert jobs can invent
-- names, and those must not hide a registered type. Where more than a thousand claim ranges were walked, some may be left out.
{known}, walked AS MATERIALIZED (
  SELECT * FROM claim_range LIMIT 1001
), registered AS MATERIALIZED (
  SELECT * FROM known LIMIT 1000
), counted AS MATERIALIZED (
  SELECT * FROM registered UNION ALL (SELECT * FROM walked EXCEPT SELECT * FROM registered)
), cut AS MATERIALIZED (
  SELECT count(*) > 1000 AS cut FROM walked
);
