-- name: open_lease
-- Make the row of a lease that nobody has asked for before. Index: job_config_pkey.
INSERT INTO tickwright.job_config (job_name) VALUES ($1) ON CONFLICT DO NOTHING;

-- name: bound_wait
-- A paused owner inside its transaction must not keep us waiting: give up after a while and try again.
SELECT set_config('lock_timeout', $1, true);

-- name: take_lease
-- Take a lease that nobody holds or whose deadline has passed; the version is the new fence. Index: job_config_pkey.
UPDATE tickwright.job_config
   SET running = true, owner = $2, version = version + 1, last_started_at = clock_timestamp(),
       lease_until = clock_timestamp() + $3::interval
 WHERE job_name = $1 AND (running = false OR coalesce(lease_until, '-infinity') < clock_timestamp())
RETURNING version;

-- name: renew_lease
-- Move the deadline, if the lease is still ours. Fenced. Index: job_config_pkey.
UPDATE tickwright.job_config SET lease_until = clock_timestamp() + $4::interval
 WHERE job_name = $1 AND owner = $2 AND version = $3 AND running
RETURNING version;

-- name: lock_lease
-- First statement of every protected transaction: no row means that the lease is lost. A takeover waits for this
-- transaction or comes before it. Whoever stalls in it is thrown out long before the lease ends, with or without the
-- pool's session settings. Fenced. Index: job_config_pkey.
SELECT version, set_config('idle_in_transaction_session_timeout', '3000', true)
  FROM tickwright.job_config WHERE job_name = $1 AND version = $2 AND running FOR SHARE;

-- name: release_lease
-- Give a lease back. Fenced: a zombie cannot release its successor's. Index: job_config_pkey.
UPDATE tickwright.job_config
   SET running = false, owner = NULL, lease_until = NULL, last_completed_at = clock_timestamp()
 WHERE job_name = $1 AND owner = $2 AND version = $3
RETURNING version;

-- name: break_lease
-- An operator takes a lease away from its holder: the fence rises, so that whatever the holder still writes counts for
-- nothing. Index: job_config_pkey.
UPDATE tickwright.job_config SET running = false, owner = NULL, lease_until = NULL, version = version + 1
 WHERE job_name = $1 AND running
RETURNING version;

-- name: list_leases
-- Every lease, and whether somebody holds it. Small: a row per job name.
SELECT job_name, slice_start, slice_end, last_started_at, last_completed_at, running, version, owner, lease_until,
       running AND lease_until >= clock_timestamp() AS held
  FROM tickwright.job_config ORDER BY job_name LIMIT 10000;
