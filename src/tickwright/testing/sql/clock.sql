-- name: install
-- Replace the clock of a database that a test fixture has made, before any other object is made in it. pg_proc belongs to one database, so no
-- other one is affected. The built-in functions stay under other names, and what refers to a clock by name gets these: statements, defaults,
-- functions with any search_path. Not replaced: CURRENT_TIMESTAMP and the other keywords, the literal 'now', and times that the server itself
-- notes (pg_stat_activity). In the transaction of an isolated test, now() is the time of the statement, so that time passes there.
CREATE SCHEMA tickwright_test;
CREATE TABLE tickwright_test.clock (ahead interval NOT NULL);
INSERT INTO tickwright_test.clock (ahead) VALUES ('0');
GRANT USAGE ON SCHEMA tickwright_test TO PUBLIC;
GRANT SELECT ON tickwright_test.clock TO PUBLIC;
ALTER FUNCTION pg_catalog.now() RENAME TO real_now;
ALTER FUNCTION pg_catalog.transaction_timestamp() RENAME TO real_transaction_timestamp;
ALTER FUNCTION pg_catalog.statement_timestamp() RENAME TO real_statement_timestamp;
ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO real_clock_timestamp;
CREATE FUNCTION pg_catalog.now() RETURNS timestamptz LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
  RETURN (SELECT c.ahead + CASE current_setting('tickwright_test.isolated', true) WHEN 'on' THEN pg_catalog.real_statement_timestamp()
                             ELSE pg_catalog.real_now() END
            FROM tickwright_test.clock c);
END $$;
CREATE FUNCTION pg_catalog.transaction_timestamp() RETURNS timestamptz LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
  RETURN pg_catalog.now();
END $$;
CREATE FUNCTION pg_catalog.statement_timestamp() RETURNS timestamptz LANGUAGE plpgsql STABLE PARALLEL SAFE AS $$
BEGIN
  RETURN (SELECT c.ahead + pg_catalog.real_statement_timestamp() FROM tickwright_test.clock c);
END $$;
CREATE FUNCTION pg_catalog.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
BEGIN
  RETURN (SELECT c.ahead + pg_catalog.real_clock_timestamp() FROM tickwright_test.clock c);
END $$;

-- name: advance_to
-- Let the clock be at $1, or later where it is later already. Returns the clock.
UPDATE tickwright_test.clock SET ahead = greatest(ahead, $1::timestamptz - pg_catalog.real_clock_timestamp())
RETURNING clock_timestamp();

-- name: advance_by
-- Move the clock forward by $1. Returns the clock.
UPDATE tickwright_test.clock SET ahead = ahead + $1::interval RETURNING clock_timestamp();

-- name: ahead
-- How far the clock is ahead of the server's.
SELECT ahead FROM tickwright_test.clock;

-- name: set_ahead
-- Move the clock back to where it was.
UPDATE tickwright_test.clock SET ahead = $1::interval;

-- name: is_movable
-- Whether this database has such a clock.
SELECT to_regclass('tickwright_test.clock') IS NOT NULL;
