-- name: now
-- The database's clock in seconds since 1970.
SELECT extract(epoch FROM clock_timestamp())::float8;

-- name: message_key
-- The key that tasks of fan-out are signed with.
SELECT key FROM tickwright.message_keys WHERE ends_at IS NULL;
