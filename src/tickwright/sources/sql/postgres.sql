-- name: begin
-- A transaction that cannot write, with terms of its own so that they hold behind PgBouncer too: {timeout_ms}, a number, for the whole of one query, and one spelling of values for all servers.
BEGIN READ ONLY;
SELECT set_config('statement_timeout', '{timeout_ms}', true),
       set_config('timezone', 'UTC', true),
       set_config('datestyle', 'ISO, YMD', true),
       set_config('intervalstyle', 'postgres', true),
       set_config('bytea_output', 'hex', true),
       set_config('extra_float_digits', '1', true),
       set_config('standard_conforming_strings', 'on', true)

-- name: powers
-- What makes a role of this connection more than one that reads, its own and those that it may take on; no row for a plain one. Asked in the message of
-- ``begin``, so that it holds for each server behind a pooler and behind each failover. Index: pg_authid is small and is read whole.
SELECT u.rolname,
       pg_catalog.string_agg(DISTINCT
         CASE WHEN r.oid = u.oid AND r.rolsuper THEN 'is a superuser'
              WHEN u.rolsuper THEN NULL
              WHEN r.rolsuper THEN pg_catalog.format('is a member of the superuser %I', r.rolname)
              WHEN r.rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files')
                THEN pg_catalog.format('is a member of %I', r.rolname)
              WHEN r.oid = u.oid THEN 'may create roles (CREATEROLE)'
              ELSE pg_catalog.format('is a member of %I, which may create roles (CREATEROLE)', r.rolname) END, ' and ')
  FROM pg_catalog.pg_roles AS u
  JOIN pg_catalog.pg_roles AS r
    ON r.rolsuper OR r.rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files')
    OR r.rolcreaterole AND pg_catalog.current_setting('server_version_num')::int < 160000
 WHERE u.rolname IN (session_user, current_user) AND pg_catalog.pg_has_role(u.oid, r.oid, 'MEMBER')
 GROUP BY u.rolname

-- name: one_query
-- What PostgreSQL parses and never runs: its grammar takes one SELECT, VALUES, TABLE or WITH behind FOR, and no statement that writes in a WITH.
DECLARE tickwright CURSOR FOR {query}

-- name: bounded
-- A query whose rows are weighed before they are sent: one of more than {bytes_max} bytes is an error that names itself. OFFSET 0 keeps the query a plan
-- of its own, so that nothing in it is computed twice. The weight is of values as they are out of their storage, for 0.1 us a row.
SELECT "tickwright row".* FROM (SELECT * FROM (
{query}
) AS q OFFSET 0) AS "tickwright row"
 WHERE CASE WHEN pg_catalog.pg_column_size("tickwright row".*) > {bytes_max}
            THEN ('tickwright row_too_large ' || pg_catalog.pg_column_size("tickwright row".*))::int ELSE 1 END = 1

-- name: end
-- Whatever was set is as before, and locks of the session that a query took are released, in one message. Settings, temporary tables and LISTEN end with the transaction.
ROLLBACK;
SELECT pg_catalog.pg_advisory_unlock_all()
