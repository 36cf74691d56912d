-- name: begin
-- A read-only transaction with its own settings, which also apply behind PgBouncer: a timeout of {timeout_ms} for the whole query, and the same
-- text form of values on all servers.
BEGIN READ ONLY;
SELECT set_config('statement_timeout', '{timeout_ms}', true),
       set_config('timezone', 'UTC', true),
       set_config('datestyle', 'ISO, YMD', true),
       set_config('intervalstyle', 'postgres', true),
       set_config('bytea_output', 'hex', true),
       set_config('extra_float_digits', '1', true),
       set_config('standard_conforming_strings', 'on', true)

-- name: powers
-- The privileges of this connection's role, and of roles that it may take on, beyond reading; no row for a plain role. Part of the message of
-- ``begin``, so that it is checked for each server behind a pooler and after each failover. Index: pg_authid is small and is read whole.
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
-- Parsed by PostgreSQL, never run: after FOR its grammar accepts one SELECT, VALUES, TABLE or WITH, and no writing statement in a WITH.
DECLARE tickwright CURSOR FOR {query}

-- name: bounded
-- A query whose rows are measured before they are sent; a row of more than {bytes_max} bytes raises an error with its size. OFFSET 0 keeps the query
-- a separate plan, so that nothing in it is computed twice. The size is that of detoasted values, at 0.1 us a row.
SELECT "tickwright row".* FROM (SELECT * FROM (
{query}
) AS q OFFSET 0) AS "tickwright row"
 WHERE CASE WHEN pg_catalog.pg_column_size("tickwright row".*) > {bytes_max}
            THEN ('tickwright row_too_large ' || pg_catalog.pg_column_size("tickwright row".*))::int ELSE 1 END = 1

-- name: end
-- End the transaction and release session locks that a query took, in one message. Settings, temporary tables and LISTEN end with the
-- transaction.
ROLLBACK;
SELECT pg_catalog.pg_advisory_unlock_all()
