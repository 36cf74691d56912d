-- name: now
-- The database's clock in seconds since 1970. No table.
SELECT extract(epoch FROM clock_timestamp())::float8;

-- name: list_modules
-- Every module. Index: none, the table is small and read whole.
SELECT name, interval_seconds AS length_s, timeout_ms, is_gated, paused_at IS NOT NULL AS is_paused FROM tickwright.modules ORDER BY name;

-- name: list_enabled
-- Every polled entity, with what messages need. Parties above $1 bytes are left out, without decompressing them. Read whole, a few times
-- an hour. Index: entities_pkey.
SELECT code, CASE WHEN NOT tickwright.may_be_long(party) AND octet_length(party::text) <= $1 THEN party::text ELSE '' END,
       polling_enabled_modules, partner, config_version
FROM tickwright.entities WHERE is_polling_enabled ORDER BY code;

-- name: parties
-- Entities of a chunk, with parties that are too large to be kept. Index: entities_pkey.
SELECT code, party::text, partner, config_version FROM tickwright.entities WHERE code = ANY ($1);

-- name: list_successes
-- The start of the last successful run of each entity and task type, without instants that a wrong clock has written. Read whole, a few
-- times an hour. Index: fanout_cursors_pkey.
SELECT entity_code, task_type, extract(epoch FROM last_success_at)::float8
FROM tickwright.fanout_cursors WHERE last_success_at BETWEEN to_timestamp(0) AND clock_timestamp() + interval '1 minute'
 ORDER BY entity_code, task_type;
