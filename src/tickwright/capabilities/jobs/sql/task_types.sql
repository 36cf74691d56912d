-- name: list
-- All task types and the number of their secrets in use; never a secret. Small: a row per type.
SELECT t.*, (SELECT count(*) FROM tickwright.task_type_secrets s
              WHERE s.task_type = t.name AND (s.retires_at IS NULL OR s.retires_at > clock_timestamp())) AS signing_secrets,
       (SELECT q.paused_at FROM tickwright.queues q WHERE q.name = t.queue) AS queue_paused_at
  FROM tickwright.task_types t WHERE $1::text IS NULL OR t.name = $1 ORDER BY t.name LIMIT 10000;

-- name: lock
-- Serialize changes of one type. Index: task_types_pkey.
SELECT name FROM tickwright.task_types WHERE name = $1 FOR UPDATE;

-- name: put
-- Create or replace a type; a new target clears gone_at. Where $18 is NULL, it stays encrypted or plain. Index: task_types_pkey.
INSERT INTO tickwright.task_types AS t
       (name, target, timeout_ms, max_attempts, retry_base_ms, retry_factor, retry_cap_ms, final_statuses, concurrency,
        rate_per_s, keep_history, queue, needs, group_limit, group_rate_per_s, group_order, uniqueness, encrypted, deliver)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::integer[], $9, $10, $11, $12, $13::text[], $14, $15, $16, CAST($17::text AS jsonb),
        coalesce($18::boolean, false), $19)
ON CONFLICT (name) DO UPDATE
   SET target = excluded.target, timeout_ms = excluded.timeout_ms, max_attempts = excluded.max_attempts,
       retry_base_ms = excluded.retry_base_ms, retry_factor = excluded.retry_factor,
       retry_cap_ms = excluded.retry_cap_ms, final_statuses = excluded.final_statuses,
       concurrency = excluded.concurrency, rate_per_s = excluded.rate_per_s, keep_history = excluded.keep_history,
       queue = excluded.queue, needs = excluded.needs,
       group_limit = excluded.group_limit, group_rate_per_s = excluded.group_rate_per_s, group_order = excluded.group_order,
       uniqueness = excluded.uniqueness,
       encrypted = coalesce($18::boolean, t.encrypted), deliver = excluded.deliver,
       gone_at = CASE WHEN t.target = excluded.target THEN t.gone_at END,
       version = t.version + 1, updated_at = clock_timestamp();

-- name: pause
-- Pause a type: its jobs wait until it is enabled. Index: task_types_pkey.
UPDATE tickwright.task_types
   SET paused_at = coalesce(paused_at, clock_timestamp()), version = version + 1, updated_at = clock_timestamp()
 WHERE name = $1;

-- name: enable
-- Run a type's jobs again, also after its endpoint answered 410. Index: task_types_pkey.
UPDATE tickwright.task_types
   SET paused_at = NULL, gone_at = NULL, version = version + 1, updated_at = clock_timestamp()
 WHERE name = $1;

-- name: delete
-- Delete a type; its jobs wait like those of an unknown type. Index: task_types_pkey.
DELETE FROM tickwright.task_types WHERE name = $1;

-- name: delete_rate
-- Delete the state of a type's rate limit. Index: type_rates_pkey.
DELETE FROM tickwright.type_rates WHERE task_type = $1;

-- name: retire_secrets
-- Keep the present secrets in use beside a new one, for a while. Index: task_type_secrets_type.
UPDATE tickwright.task_type_secrets SET retires_at = least(retires_at, clock_timestamp() + $2::interval)
 WHERE task_type = $1;

-- name: drop_retired
-- Delete secrets that are no longer in use. Index: task_type_secrets_type.
DELETE FROM tickwright.task_type_secrets WHERE task_type = $1 AND retires_at <= clock_timestamp();

-- name: add_secret
-- Add a secret, in use from now on.
INSERT INTO tickwright.task_type_secrets (task_type, secret) VALUES ($1, $2);

-- name: list_types
-- All task types with their secrets in use, newest first, the pauses of their queues, and whether there are jobs with a group, or settings for them.
-- Small: a row per type.
SELECT t.*, coalesce(s.secrets, '{}') AS secrets, q.paused_at AS queue_paused_at,
       t.group_limit IS NOT NULL OR t.group_rate_per_s IS NOT NULL OR t.group_order IS NOT NULL
         OR EXISTS (SELECT FROM tickwright.job_groups g WHERE g.task_type = t.name)
         OR EXISTS (SELECT FROM tickwright.job_group_hints h WHERE h.task_type = t.name) AS has_groups
  FROM tickwright.task_types t
  LEFT JOIN tickwright.queues q ON q.name = t.queue
  LEFT JOIN LATERAL (
    SELECT array_agg(x.secret ORDER BY x.id DESC) AS secrets
      FROM tickwright.task_type_secrets x
     WHERE x.task_type = t.name AND (x.retires_at IS NULL OR x.retires_at > clock_timestamp())) AS s ON true
 ORDER BY t.name;

-- name: register_handler
-- Register the type of a handler, unless an operator has set it up differently. One that its program declares as encrypted becomes encrypted.
INSERT INTO tickwright.task_types AS t
       (name, target, timeout_ms, max_attempts, retry_base_ms, retry_factor, retry_cap_ms, concurrency, rate_per_s, keep_history, queue, needs,
        group_limit, group_rate_per_s, group_order, uniqueness, encrypted, deliver)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, CAST($16::text AS jsonb), $17, $18)
ON CONFLICT (name) DO UPDATE
   SET encrypted = true, deliver = excluded.deliver, version = t.version + 1, updated_at = clock_timestamp()
 WHERE excluded.encrypted AND NOT t.encrypted;

-- name: plain_schedules
-- Schedules of a type whose payloads are no envelopes, locked. Small: a row per schedule.
SELECT name, payload::text AS payload FROM tickwright.schedules WHERE task_type = $1 AND NOT tickwright.is_sealed(payload) FOR UPDATE;

-- name: seal_schedule
-- Replace the payload of a locked schedule by an envelope. Index: schedules_pkey.
UPDATE tickwright.schedules SET payload = CAST($2::text AS jsonb) WHERE name = $1;

-- name: mark_gone
-- Make a type wait until it is enabled again: its endpoint answered 410.
UPDATE tickwright.task_types SET gone_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
 WHERE name = $1 AND gone_at IS NULL;
