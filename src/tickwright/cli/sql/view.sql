-- name: counts
-- What waits, is due, and runs, and the living workers; each count stops at 10,000. Index: scheduled_tasks_pkey.
SELECT count(*) FILTER (WHERE owner IS NULL AND due_at > clock_timestamp()) AS waiting,
       count(*) FILTER (WHERE owner IS NULL AND due_at <= clock_timestamp()) AS due,
       count(*) FILTER (WHERE status = 'processing') AS running,
       coalesce(date_part('epoch', clock_timestamp() - min(due_at)
         FILTER (WHERE owner IS NULL AND due_at <= clock_timestamp())), 0) AS oldest_due_s,
       (SELECT count(*) FROM tickwright.workers WHERE lost_at IS NULL AND lease_until > clock_timestamp()) AS workers
  FROM (SELECT owner, status, coalesce(retry_at, execute_at) AS due_at
          FROM ONLY tickwright.scheduled_tasks ORDER BY id LIMIT 10000) AS live;

-- name: latest
-- The youngest jobs, in any state. Indexes: the primary keys of the live table and of each day.
SELECT id, task_type, status, attempts, max_attempts, error_message, coalesce(retry_at, execute_at) AS due_at
  FROM tickwright.scheduled_tasks ORDER BY id DESC LIMIT $1::integer;

-- name: finished_lately
-- How many of the last 5,000 jobs ended in the last minute, by their state. Indexes: the primary keys.
SELECT status, count(*) AS jobs
  FROM (SELECT status, completed_at FROM tickwright.scheduled_tasks ORDER BY id DESC LIMIT 5000) AS young
 WHERE completed_at > clock_timestamp() - interval '1 minute'
 GROUP BY status;
