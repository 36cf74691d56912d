-- name: list
-- All task types and how many secrets sign for each; never a secret. Small: a row per type.
SELECT t.*, (SELECT count(*) FROM tickwright.task_type_secrets s
              WHERE s.task_type = t.name AND (s.retires_at IS NULL OR s.retires_at > clock_timestamp())) AS signing_secrets
  FROM tickwright.task_types t WHERE $1::text IS NULL OR t.name = $1 ORDER BY t.name LIMIT 10000;

-- name: lock
-- Serialize changes of one type. Index: task_types_pkey.
SELECT name FROM tickwright.task_types WHERE name = $1 FOR UPDATE;

-- name: put
-- Create or replace a type; a new target clears what the old endpoint said of itself. Index: task_types_pkey.
INSERT INTO tickwright.task_types AS t
       (name, target, timeout_ms, max_attempts, retry_base_ms, retry_factor, retry_cap_ms, final_statuses, concurrency,
        rate_per_s, keep_history)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8::integer[], $9, $10, $11)
ON CONFLICT (name) DO UPDATE
   SET target = excluded.target, timeout_ms = excluded.timeout_ms, max_attempts = excluded.max_attempts,
       retry_base_ms = excluded.retry_base_ms, retry_factor = excluded.retry_factor,
       retry_cap_ms = excluded.retry_cap_ms, final_statuses = excluded.final_statuses,
       concurrency = excluded.concurrency, rate_per_s = excluded.rate_per_s, keep_history = excluded.keep_history,
       gone_at = CASE WHEN t.target = excluded.target THEN t.gone_at END,
       version = t.version + 1, updated_at = clock_timestamp();

-- name: pause
-- Its jobs wait until the type is enabled. Index: task_types_pkey.
UPDATE tickwright.task_types
   SET paused_at = coalesce(paused_at, clock_timestamp()), version = version + 1, updated_at = clock_timestamp()
 WHERE name = $1;

-- name: enable
-- Its jobs run again, also after the endpoint had said that it is gone. Index: task_types_pkey.
UPDATE tickwright.task_types
   SET paused_at = NULL, gone_at = NULL, version = version + 1, updated_at = clock_timestamp()
 WHERE name = $1;

-- name: delete
-- Forget a type; its jobs wait as those of an unknown type do. Index: task_types_pkey.
DELETE FROM tickwright.task_types WHERE name = $1;

-- name: delete_rate
-- And what its rate limit had given away. Index: type_rates_pkey.
DELETE FROM tickwright.type_rates WHERE task_type = $1;

-- name: retire_secrets
-- The secrets so far sign for a while beside the new one. Index: task_type_secrets_type.
UPDATE tickwright.task_type_secrets SET retires_at = least(retires_at, clock_timestamp() + $2::interval)
 WHERE task_type = $1;

-- name: drop_retired
-- Secrets that sign no more are kept nowhere. Index: task_type_secrets_type.
DELETE FROM tickwright.task_type_secrets WHERE task_type = $1 AND retires_at <= clock_timestamp();

-- name: add_secret
-- A secret that signs from now on.
INSERT INTO tickwright.task_type_secrets (task_type, secret) VALUES ($1, $2);

-- name: list_types
-- All task types with the secrets that still sign, newest first. Small: a row per type.
SELECT t.*, coalesce(s.secrets, '{}') AS secrets
  FROM tickwright.task_types t
  LEFT JOIN LATERAL (
    SELECT array_agg(x.secret ORDER BY x.id DESC) AS secrets
      FROM tickwright.task_type_secrets x
     WHERE x.task_type = t.name AND (x.retires_at IS NULL OR x.retires_at > clock_timestamp())) AS s ON true
 ORDER BY t.name;

-- name: register_handler
-- A handler that this program brings becomes a type, unless an operator has set it up differently.
INSERT INTO tickwright.task_types (name, target, timeout_ms, max_attempts, retry_base_ms, retry_factor, retry_cap_ms, concurrency, rate_per_s, keep_history)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (name) DO NOTHING;

-- name: mark_gone
-- The endpoint answered 410: its type waits until somebody enables it again.
UPDATE tickwright.task_types SET gone_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
 WHERE name = $1 AND gone_at IS NULL;
