-- name: due_ranges
-- The claim ranges of the types $1 with a due pending job, in the order in which a drain runs their jobs. Index: scheduled_tasks_due.
SELECT t.task_type, t.priority
  FROM ONLY tickwright.scheduled_tasks t
 WHERE t.task_type = ANY ($1::text[]) AND t.status = 'pending' AND coalesce(t.retry_at, t.execute_at) <= clock_timestamp()
 GROUP BY t.task_type, t.priority
 ORDER BY t.priority DESC, min(coalesce(t.retry_at, t.execute_at)), min(t.id);

-- name: next_due
-- The first instant at which a pending job of the types $1 is due, at the earliest now. Index: scheduled_tasks_due.
SELECT min(coalesce(t.due_at, t.retry_at, t.execute_at))
  FROM ONLY tickwright.scheduled_tasks t
 WHERE t.task_type = ANY ($1::text[]) AND t.status = 'pending' AND coalesce(t.retry_at, t.execute_at) > clock_timestamp()
   AND coalesce(t.due_at, t.retry_at, t.execute_at) > clock_timestamp();

-- name: now
-- The database's clock.
SELECT clock_timestamp();

-- name: live
-- Live jobs, all or those of the type $1, in the order of their due times; at most $2, and the database's clock. Index: scheduled_tasks_due.
SELECT t.id, t.task_type, t.payload::text AS payload, t.status, coalesce(t.due_at, t.retry_at, t.execute_at) AS due_at, t.priority, t.attempts,
       t.max_attempts, t.idempotency_key AS key, t.timeout_ms, t.expires_at, coalesce(t.tags, '{}') AS tags, t.metadata::text AS metadata,
       t.group_key AS "group", t.uniqueness::text AS uniqueness, clock_timestamp() AS now
  FROM ONLY tickwright.scheduled_tasks t
 WHERE $1::text IS NULL OR t.task_type = $1::text
 ORDER BY coalesce(t.due_at, t.retry_at, t.execute_at), t.id LIMIT $2::integer;
