-- name: arm
-- Take the exclusive side of a doorbell's lock, so that inserts notify; false while an insert is on its way.
SELECT pg_try_advisory_lock($1, $2);

-- name: others_sleep
-- Whether another session keeps the doorbell armed, so that inserts notify everybody who listens.
SELECT NOT pg_try_advisory_xact_lock_shared($1, $2);

-- name: disarm
-- Let inserts be silent again.
SELECT pg_advisory_unlock($1, $2);
