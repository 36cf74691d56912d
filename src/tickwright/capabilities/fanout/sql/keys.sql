-- name: message_keys
-- The valid keys, the signing one first. Index: none, the table has a row or two.
SELECT key FROM tickwright.message_keys
 WHERE ends_at IS NULL OR ends_at > clock_timestamp()
 ORDER BY signs_from <= clock_timestamp() DESC, id DESC;
