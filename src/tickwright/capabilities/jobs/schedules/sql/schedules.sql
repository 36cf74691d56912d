-- name: shown
-- The columns of a schedule s for views, and the clock. Part of statements.
s.name, s.task_type, s.cron, s.every, s.first_at, s.time_zone, s.spread, s.overlap, s.misfire, s.misfire_max, s.misfire_grace, s.priority, s.max_attempts,
       s.timeout_ms, s.expires_after, s.paused_at, s.set_by, s.version, s.created_at, s.updated_at, s.counts_from, s.next_slot_at, s.last_slot_at,
       s.last_job_id, s.problem, clock_timestamp() AS now

-- name: list
-- A page of schedules behind the name $1 whose names lie between $2 and $3, of the task type $4 if any. Index: schedules_pkey.
SELECT {shown} FROM tickwright.schedules s
 WHERE s.name > $1 AND s.name >= $2 AND s.name < $3 AND ($4::text IS NULL OR s.task_type = $4) ORDER BY s.name LIMIT $5;

-- name: get
-- One schedule. Index: schedules_pkey.
SELECT {shown} FROM tickwright.schedules s WHERE s.name = $1;

-- name: is_encrypted
-- Whether a type is encrypted. Index: task_types_pkey.
SELECT encrypted FROM tickwright.task_types WHERE name = $1;

-- name: payload
-- The payload of a schedule's jobs. Index: schedules_pkey.
SELECT payload::text AS payload FROM tickwright.schedules WHERE name = $1;

-- name: lock
-- Serialize changes of one schedule, also with the producer. Index: schedules_pkey.
SELECT name FROM tickwright.schedules WHERE name = $1 FOR NO KEY UPDATE;

-- name: create
-- A new schedule, unless there is one of that name. Index: schedules_pkey.
INSERT INTO tickwright.schedules
  (name, set_by, task_type, payload, cron, every, first_at, time_zone, spread, overlap, misfire, misfire_max, misfire_grace, priority, max_attempts,
   timeout_ms, expires_after)
VALUES ($1, $2, $3, CAST($4::text AS jsonb), $5, $6::interval, $7::timestamptz, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17::interval)
ON CONFLICT (name) DO NOTHING RETURNING name;

-- name: edit
-- Replace the definition of a schedule; its trigger makes the next version. After lock. Index: schedules_pkey.
UPDATE tickwright.schedules
   SET set_by = $2, task_type = $3, payload = CAST($4::text AS jsonb), cron = $5, every = $6::interval, first_at = $7::timestamptz, time_zone = $8,
       spread = $9, overlap = $10, misfire = $11, misfire_max = $12, misfire_grace = $13, priority = $14, max_attempts = $15, timeout_ms = $16,
       expires_after = $17::interval
 WHERE name = $1;

-- name: pause
-- Pause a schedule: no job is made of it until it is enabled. Index: schedules_pkey.
UPDATE tickwright.schedules SET paused_at = clock_timestamp() WHERE name = $1 AND paused_at IS NULL;

-- name: enable
-- Enable a schedule from now on: what it missed is not caught up. Index: schedules_pkey.
UPDATE tickwright.schedules SET paused_at = NULL WHERE name = $1 AND paused_at IS NOT NULL;

-- name: delete
-- Delete a schedule and its skips; its jobs stay. Index: schedules_pkey, schedule_skips_pkey.
DELETE FROM tickwright.schedules WHERE name = $1;

-- name: skips
-- The newest occurrences without a job. Index: schedule_skips_pkey.
SELECT slot_at, until_at, slots, reason, decided_at FROM tickwright.schedule_skips WHERE schedule = $1 ORDER BY slot_at DESC LIMIT $2;

-- name: skip_of
-- The skip that an occurrence is in. Index: schedule_skips_pkey.
SELECT slot_at, until_at, slots, reason, decided_at FROM tickwright.schedule_skips
 WHERE schedule = $1 AND slot_at <= $2 AND until_at >= $2 ORDER BY slot_at DESC LIMIT 1;

-- name: job_of
-- The job of a key and its status, as far as it is kept. Indexes: scheduled_tasks_key, job_keys_pkey, the primary key of each table of jobs.
SELECT j.id, (SELECT t.status FROM tickwright.scheduled_tasks t WHERE t.id = j.id LIMIT 1) AS status
  FROM (SELECT id FROM ONLY tickwright.scheduled_tasks WHERE idempotency_key = $1
        UNION ALL SELECT job_id FROM tickwright.job_keys WHERE key = $1 LIMIT 1) AS j;

-- name: status_of
-- The status of a job. Index: the primary key of each table of jobs.
SELECT t.status FROM tickwright.scheduled_tasks t WHERE t.id = $1 LIMIT 1;

-- name: surroundings
-- What beside the schedule decides whether its jobs run: its task type, a job of it that has not ended, and the producer.
-- Indexes: task_types_pkey, scheduled_tasks_key, job_config_pkey.
SELECT t.name IS NOT NULL AS is_known, t.paused_at IS NOT NULL AS is_type_paused, t.gone_at IS NOT NULL AS is_gone,
       (SELECT j.id FROM ONLY tickwright.scheduled_tasks j
         WHERE j.idempotency_key >= 'schedule:' || s.name || ':' AND j.idempotency_key < 'schedule:' || s.name || ';'
         ORDER BY j.idempotency_key LIMIT 1) AS open_job_id,
       EXISTS (SELECT FROM tickwright.job_config c
                WHERE c.job_name = 'campaign-producer' AND c.running AND c.lease_until > clock_timestamp()) AS has_producer
  FROM tickwright.schedules s LEFT JOIN tickwright.task_types t ON t.name = s.task_type WHERE s.name = $1;

-- name: now
-- The clock, for the preview of a definition that is not saved. No table.
SELECT clock_timestamp();
