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

-- name: end
-- Whatever was set is as before.
ROLLBACK
