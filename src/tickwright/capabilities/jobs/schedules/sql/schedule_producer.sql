-- name: due_schedules
-- Schedules that are due, locked. In a transaction of the producer's lease. Index: schedules_due.
SELECT s.name, s.cron, s.every, s.first_at, s.time_zone, s.spread, s.overlap, s.misfire, s.misfire_max, s.misfire_grace, s.next_slot_at, s.counts_from,
       clock_timestamp() AS now
  FROM tickwright.schedules s
 WHERE s.due_at <= statement_timestamp() ORDER BY s.due_at LIMIT $1 FOR NO KEY UPDATE OF s SKIP LOCKED;

-- name: open_schedules
-- Those of these schedules that have a job that has not ended: read after their rows are locked. After due_schedules. Index: scheduled_tasks_key, one
-- probe a schedule.
SELECT n.name FROM unnest($1::text[]) AS n (name)
 WHERE EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t
                WHERE t.idempotency_key >= 'schedule:' || n.name || ':' AND t.idempotency_key < 'schedule:' || n.name || ';');

-- name: bound_waits
-- The most that the next statements of this transaction wait for a lock. Before lock_open_jobs. No table.
SELECT set_config('lock_timeout', $1, true);

-- name: lock_open_jobs
-- The jobs of these schedules that have not ended, locked against claims and ends; at most a thousand of each. After due_schedules. Index:
-- scheduled_tasks_key.
SELECT job.id FROM unnest($1::text[]) AS n (name)
 CROSS JOIN LATERAL (
   SELECT t.id FROM ONLY tickwright.scheduled_tasks t
    WHERE t.idempotency_key >= 'schedule:' || n.name || ':' AND t.idempotency_key < 'schedule:' || n.name || ';'
    ORDER BY t.idempotency_key LIMIT 1000 FOR UPDATE) AS job;

-- name: cancel_jobs
-- Cancel locked jobs: a pending one ends at once, the worker of a running one is asked to stop it. After lock_open_jobs. Index: scheduled_tasks_pkey.
UPDATE ONLY tickwright.scheduled_tasks t SET status = 'cancelled' WHERE t.id = ANY ($1::bigint[]);

-- name: put_jobs
-- One job per schedule and slot: $2 is when it is due, $3 its key, which another producer, a replay or a repeated call cannot use again. Keys in order:
-- no deadlock. $4 bounds the wait for a key that another transaction holds. After due_schedules. Indexes: schedules_pkey, scheduled_tasks_key,
-- job_keys_pkey.
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, idempotency_key)
SELECT u.execute_at, s.task_type, s.payload, coalesce(s.max_attempts, t.max_attempts, 3), s.priority, s.timeout_ms, u.execute_at + s.expires_after, u.key
  FROM unnest($1::text[], $2::timestamptz[], $3::text[]) AS u (name, execute_at, key)
  JOIN tickwright.schedules s ON s.name = u.name
  LEFT JOIN tickwright.task_types t ON t.name = s.task_type
 CROSS JOIN (SELECT set_config('lock_timeout', $4, true) AS lock_timeout) AS bound
 WHERE bound.lock_timeout IS NOT NULL
 ORDER BY u.key
    ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING idempotency_key AS key, id;

-- name: put_skips
-- Why slots have no job. After due_schedules. Index: schedule_skips_pkey.
INSERT INTO tickwright.schedule_skips (schedule, slot_at, until_at, slots, reason)
SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::timestamptz[], $4::bigint[], $5::text[]) ON CONFLICT DO NOTHING;

-- name: drop_old_skips
-- Keep the newest $2 skips of each of these schedules. After put_skips. Index: schedule_skips_pkey.
DELETE FROM tickwright.schedule_skips k USING unnest($1::text[]) AS n (name)
 WHERE k.schedule = n.name
   AND k.slot_at <= (SELECT o.slot_at FROM tickwright.schedule_skips o WHERE o.schedule = n.name ORDER BY o.slot_at DESC OFFSET $2 LIMIT 1);

-- name: move_schedules
-- Their next slots, when the producer reads them again, and their last jobs. After due_schedules. Index: schedules_pkey.
UPDATE tickwright.schedules s
   SET next_slot_at = u.next_slot_at, due_at = u.due_at, last_slot_at = coalesce(u.last_slot_at, s.last_slot_at),
       last_job_id = coalesce(u.last_job_id, s.last_job_id), decided_at = clock_timestamp(), problem = NULL
  FROM unnest($1::text[], $2::timestamptz[], $3::timestamptz[], $4::timestamptz[], $5::bigint[])
    AS u (name, next_slot_at, due_at, last_slot_at, last_job_id)
 WHERE s.name = u.name;

-- name: postpone
-- Schedules whose jobs cannot be made, and why; they are read again after $3. After due_schedules. Index: schedules_pkey.
UPDATE tickwright.schedules s SET problem = u.problem, due_at = clock_timestamp() + $3::interval
  FROM unnest($1::text[], $2::text[]) AS u (name, problem) WHERE s.name = u.name;

-- name: next_due_in
-- Seconds until a schedule is due; NULL when none ever is. Index: schedules_due.
SELECT CASE WHEN first.due_at = '-infinity' THEN 0 ELSE date_part('epoch', first.due_at - clock_timestamp()) END::float8
  FROM (SELECT min(due_at) AS due_at FROM tickwright.schedules WHERE due_at IS NOT NULL) AS first;
