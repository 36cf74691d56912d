-- name: now
-- The database's clock in seconds since 1970. No table.
SELECT extract(epoch FROM clock_timestamp())::float8;

-- name: list_modules
-- Every module; there are a handful. Index: none, the table is read whole.
SELECT name, interval_seconds, timeout_ms, is_gated, paused_at IS NOT NULL AS is_paused FROM tickwright.modules ORDER BY name;

-- name: list_enabled
-- Every entity that is polled, as messages need it, without a party of more than $1 bytes: a compressed one is not
-- unpacked. Read whole, a few times an hour. Index: entities_pkey.
SELECT code, CASE WHEN NOT tickwright.may_be_long(party) AND octet_length(party::text) <= $1 THEN party::text ELSE '' END,
       polling_enabled_modules, partner, config_version
FROM tickwright.entities WHERE is_polling_enabled ORDER BY code;

-- name: parties
-- Entities of a chunk whose parties are too large to be kept. Index: entities_pkey.
SELECT code, party::text, partner, config_version FROM tickwright.entities WHERE code = ANY ($1);

-- name: list_successes
-- When the last run that succeeded began, of all; without what a clock that had jumped has written. Read whole, a few times an hour.
-- Index: fanout_cursors_pkey.
SELECT entity_code, task_type, extract(epoch FROM last_success_at)::float8
FROM tickwright.fanout_cursors WHERE last_success_at BETWEEN to_timestamp(0) AND clock_timestamp() + interval '1 minute'
 ORDER BY entity_code, task_type;
