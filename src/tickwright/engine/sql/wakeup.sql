-- name: arm
-- Take the exclusive side of the lock, so that inserts notify; false while an insert is under way.
SELECT pg_try_advisory_lock($1, $2);

-- name: others_sleep
-- Whether another session is armed, so that inserts notify every listener.
SELECT NOT pg_try_advisory_xact_lock_shared($1, $2);

-- name: disarm
-- Release the lock, so that inserts do not notify.
SELECT pg_advisory_unlock($1, $2);
