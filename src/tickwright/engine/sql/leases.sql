-- name: open_lease
-- Create the row of a lease on first use. Index: job_config_pkey.
INSERT INTO tickwright.job_config (job_name) VALUES ($1) ON CONFLICT DO NOTHING;

-- name: bound_wait
-- Limit the wait for a lock: an owner that is paused inside its transaction must not block a take. The caller retries.
SELECT set_config('lock_timeout', $1, true);

-- name: take_lease
-- Take a lease that is free or whose deadline has passed; the version is the new fence. The whole row is locked first: an update alone would
-- not wait for the share of the key that a protected transaction of the former holder has.
-- A lease of ours above the fence $4 counts as free: the answer of its take was lost, so no work runs under it; NULL for none.
-- Index: job_config_pkey.
WITH free AS (
  SELECT job_name FROM tickwright.job_config
   WHERE job_name = $1 AND (running = false OR coalesce(lease_until, '-infinity') < clock_timestamp() OR (owner = $2 AND version > $4::bigint))
     FOR UPDATE
)
UPDATE tickwright.job_config j
   SET running = true, owner = $2, version = greatest(j.version, (SELECT tickwright.fence_floor())) + 1, last_started_at = clock_timestamp(),
       lease_until = clock_timestamp() + $3::interval
  FROM free WHERE j.job_name = free.job_name
RETURNING j.version;

-- name: renew_lease
-- Move the deadline, if the lease is still ours. Fenced. Index: job_config_pkey.
UPDATE tickwright.job_config SET lease_until = clock_timestamp() + $4::interval
 WHERE job_name = $1 AND owner = $2 AND version = $3 AND running
RETURNING version;

-- name: renew_leases
-- The same for several leases of one process; returns the renewed ones. A row that another session has locked is left out, so that it delays none of
-- the others. Fenced. Index: job_config_pkey.
WITH ours AS MATERIALIZED (
  SELECT c.job_name, u.ttl FROM unnest($1::text[], $2::bigint[], $3::interval[]) AS u (job_name, version, ttl)
    JOIN tickwright.job_config c ON c.job_name = u.job_name AND c.owner = $4 AND c.version = u.version AND c.running
   WHERE c.job_name = ANY ($1::text[]) FOR NO KEY UPDATE OF c SKIP LOCKED
)
UPDATE tickwright.job_config j SET lease_until = clock_timestamp() + ours.ttl FROM ours
 WHERE j.job_name = ours.job_name AND j.job_name = ANY ($1::text[])
RETURNING j.job_name;

-- name: free_leases
-- Which of the leases $1 can be taken. Index: job_config_pkey.
SELECT u.name FROM unnest($1::text[]) AS u (name) LEFT JOIN tickwright.job_config c ON c.job_name = u.name
 WHERE c.job_name IS NULL OR NOT c.running OR coalesce(c.lease_until, '-infinity') < clock_timestamp();

-- name: lock_lease
-- First statement of every protected transaction; no row: the lease is lost. A takeover waits for this transaction or comes before it. A
-- renewal changes no key and passes, so the transaction may last longer than the lease. PostgreSQL ends a transaction that idles in it
-- long before the lease ends, with or without the pool's session settings. Fenced. Index: job_config_pkey.
SELECT version, set_config('idle_in_transaction_session_timeout', '3000', true)
  FROM tickwright.job_config WHERE job_name = $1 AND version = $2 AND running FOR KEY SHARE;

-- name: release_lease
-- Release a lease; it cannot be taken before $4 has passed since it was taken. Fenced: a former holder cannot release its successor's.
-- While that time runs, the lease still counts as running, so its fence rises. Index: job_config_pkey.
UPDATE tickwright.job_config
   SET running = rests, owner = NULL, lease_until = CASE WHEN rests THEN last_started_at + $4::interval END,
       version = version + rests::integer, last_completed_at = clock_timestamp()
  FROM (SELECT coalesce(last_started_at + $4::interval > clock_timestamp(), false) AS rests
          FROM tickwright.job_config WHERE job_name = $1) AS now
 WHERE job_name = $1 AND owner = $2 AND version = $3
RETURNING version;

-- name: break_lease
-- Take a lease away from its holder, by an operator: the fence rises, so later writes of the holder have no effect. Waits for the holder's
-- transaction, as a takeover does. Index: job_config_pkey.
WITH held AS (
  SELECT job_name, owner, version FROM tickwright.job_config WHERE job_name = $1 AND running FOR UPDATE
)
UPDATE tickwright.job_config j SET running = false, owner = NULL, lease_until = NULL, version = j.version + 1
  FROM held WHERE j.job_name = held.job_name
RETURNING held.owner, held.version AS old_version, j.version;
