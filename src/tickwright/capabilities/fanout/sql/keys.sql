-- name: message_keys
-- The keys that are valid, the one that signs first. Index: none, the table has a row or two.
SELECT key FROM tickwright.message_keys
 WHERE ends_at IS NULL OR ends_at > clock_timestamp()
 ORDER BY signs_from <= clock_timestamp() DESC, id DESC;
