-- name: connections
-- How many connections the database has beside the one that asks. No table.
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend';
