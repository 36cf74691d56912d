-- name: arm
-- Take the exclusive side of the lock, so that inserts notify; false while an insert is under way.
SELECT pg_try_advisory_lock($1, $2);

-- name: others_sleep
-- Whether another session is armed, so that inserts notify every listener.
SELECT NOT pg_try_advisory_xact_lock_shared($1, $2);

-- name: disarm
-- Release the locks $1 of the class $2, so that inserts do not notify, and tell other listeners on the channel $3, which may rely on them.
SELECT count(pg_advisory_unlock($2, lock)), pg_notify($3, 'awake') FROM unnest($1::integer[]) AS lock;

-- name: notify
-- Notify the channel $1.
SELECT pg_notify($1, $2);
