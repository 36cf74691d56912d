-- name: facts
-- Facts about the server; one row, no table is read.
SELECT current_setting('server_version_num')::integer AS server_version,
       current_setting('server_version') AS server_version_text,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') AS synchronous_standby_names,
       current_setting('max_connections')::integer AS max_connections,
       pg_is_in_recovery() AS in_recovery,
       date_part('epoch', clock_timestamp()) AS now_s,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
       (SELECT coalesce(max(date_part('epoch', clock_timestamp() - xact_start)), 0) FROM pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()) AS oldest_transaction_s,
       (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) AS sync_standbys;

-- name: alive
-- The live workers by role. Small: a row per process.
SELECT role, count(*) AS workers FROM tickwright.workers, unnest(roles) AS role
 WHERE lost_at IS NULL AND lease_until > clock_timestamp() GROUP BY role;

-- name: ask_source
-- The query that is sent to each source, whatever its database; no table is read.
SELECT 1 AS one;

-- name: roles_not_to_end
-- Roles for plain SQL whose sessions this database user may not end, even if they block a table. Small: a row per role.
SELECT r.rolname AS role, quote_ident(r.rolname) AS quoted, quote_ident(current_user) AS me
  FROM tickwright.app_roles a JOIN pg_roles r ON r.rolname = a.name
 WHERE NOT pg_has_role(r.oid, 'USAGE') AND NOT pg_has_role('pg_signal_backend', 'USAGE') ORDER BY r.rolname;

-- name: nothing
-- A round trip. No table.
SELECT 1;
