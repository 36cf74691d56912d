-- What jsonb is written out as, and texts beside it, are bounded where they come in. PostgreSQL keeps the number 1e131071 in ten bytes and writes
-- it in 131,072, so that a small row took the memory of whoever read it. Forward on a live system: functions and triggers are replaced, no row is read.

------------------------------------------------------------------------------------------------ JSON
CREATE FUNCTION tickwright.large_json_fits(value jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN octet_length(value::text) <= 2097152;
EXCEPTION WHEN program_limit_exceeded THEN
  RETURN false;
END $$;
COMMENT ON FUNCTION tickwright.large_json_fits(jsonb) IS 'Of json_fits: the text of a large value, which may be too long for PostgreSQL itself.';

CREATE FUNCTION tickwright.may_be_long(value jsonb) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
RETURN pg_column_size(value) >= 2000 OR pg_column_compression(value) IS NOT NULL;
COMMENT ON FUNCTION tickwright.may_be_long(jsonb) IS
  'Whether a value that json_fits may have more than 64 KB as text: up to 2 MiB. What comes compressed is small as it lies there.';

-- 32: numbers of double precision take up to 26 times as much, escapes of a text six times. The inner CASE keeps a planner that knows the value
-- from writing out a large one.
CREATE FUNCTION tickwright.json_fits(value jsonb) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN tickwright.may_be_long(value) THEN pg_column_size(value) <= 1048576 AND tickwright.large_json_fits(value)
            ELSE octet_length((CASE WHEN pg_column_size(value) < 2000 THEN value END)::text) <= 32 * pg_column_size(value) END;
COMMENT ON FUNCTION tickwright.json_fits(jsonb) IS
  'Whether a payload has at most 1 MiB, and is not much longer as text: 2 MiB, and 32 times its size where it is small.';

CREATE FUNCTION tickwright.written_bytes(value jsonb) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN tickwright.may_be_long(value) THEN 2097152 ELSE 32 * pg_column_size(value) END;
COMMENT ON FUNCTION tickwright.written_bytes(jsonb) IS
  'As many bytes as a value that json_fits can have as text, at most; without writing it out, which would cost as much as reading it.';

------------------------------------------------------------------------------------------------ jobs
CREATE OR REPLACE FUNCTION tickwright.refuse_job(job tickwright.scheduled_tasks) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  rule text;
  advice text;
BEGIN
  SELECT r.rule, r.advice INTO rule, advice FROM (VALUES
    ('task_type',    job.task_type !~ '^[A-Za-z0-9][A-Za-z0-9_.:-]*$', 'task_type: letters, digits, and _ . : - behind the first'),
    ('execute_at',   job.execute_at < '1970-01-01Z' OR job.execute_at >= '9999-01-01Z', 'execute_at: between 1970 and 9998'),
    ('expires_at',   job.expires_at < '1970-01-01Z' OR job.expires_at >= '9999-01-01Z', 'expires_at: between 1970 and 9998'),
    ('max_attempts', job.max_attempts NOT BETWEEN 1 AND 1000, 'max_attempts: 1 to 1000'),
    ('priority',     job.priority NOT BETWEEN -100 AND 100, 'priority: -100 to 100, higher first'),
    ('timeout',      job.timeout_ms NOT BETWEEN 1 AND 86400000, 'timeout_ms: 1 to 86400000'),
    ('traceparent',  octet_length(job.traceparent) > 512, 'traceparent: at most 512 bytes'),
    ('digest',       octet_length(job.request_digest) > 64, 'request_digest: at most 64 bytes'),
    ('payload',      pg_column_size(job.payload) > 1048576, 'payload: at most 1 MiB; keep large things elsewhere'),
    ('payload',      NOT tickwright.json_fits(job.payload),
                     'payload: at most 2 MiB as text, and no numbers that are much longer than what keeps them, such as 1e1000; write them as texts'),
    ('new',          true, 'status, attempts, fence and owner are Tickwright''s; leave them out')
  ) AS r (rule, broken, advice) WHERE r.broken LIMIT 1;
  RAISE EXCEPTION 'job refused: %', advice
    USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_' || rule, HINT = advice;
END $$;
DROP TRIGGER scheduled_tasks_new ON tickwright.scheduled_tasks;
CREATE TRIGGER scheduled_tasks_new BEFORE INSERT ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (NOT (NEW.status = 'pending' AND NEW.owner IS NULL AND NEW.attempts = 0 AND NEW.fence = 0
             AND NEW.task_type ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]*$'
             AND NEW.execute_at >= '1970-01-01Z' AND NEW.execute_at < '9999-01-01Z'
             AND NEW.max_attempts BETWEEN 1 AND 1000 AND NEW.priority BETWEEN -100 AND 100
             AND coalesce(NEW.timeout_ms, 1) BETWEEN 1 AND 86400000 AND tickwright.json_fits(NEW.payload)
             AND coalesce(octet_length(NEW.traceparent), 0) <= 512 AND coalesce(octet_length(NEW.request_digest), 0) <= 64))
  EXECUTE FUNCTION tickwright.refuse_new_job();
DROP TRIGGER scheduled_tasks_edited ON tickwright.scheduled_tasks;
CREATE TRIGGER scheduled_tasks_edited
  BEFORE UPDATE OF task_type, execute_at, max_attempts, priority, timeout_ms, payload ON tickwright.scheduled_tasks
  FOR EACH ROW
  WHEN (NOT (NEW.task_type ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]*$'
             AND NEW.execute_at >= '1970-01-01Z' AND NEW.execute_at < '9999-01-01Z'
             AND NEW.max_attempts BETWEEN 1 AND 1000 AND NEW.priority BETWEEN -100 AND 100
             AND coalesce(NEW.timeout_ms, 1) BETWEEN 1 AND 86400000 AND tickwright.json_fits(NEW.payload)))
  EXECUTE FUNCTION tickwright.refuse_new_job();

------------------------------------------------------------------------------------------------ outbox
CREATE FUNCTION tickwright.refuse_message() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  broken text := CASE WHEN tickwright.json_fits(NEW.payload) THEN 'headers' ELSE 'payload' END;
  advice text := CASE broken WHEN 'headers' THEN 'headers: at most 256 KiB; write numbers such as 1e1000 as texts'
                             ELSE 'payload: at most 1 MiB, 2 MiB as text; write numbers such as 1e1000 as texts' END;
BEGIN
  RAISE EXCEPTION 'message refused: %', advice
    USING ERRCODE = 'check_violation', CONSTRAINT = 'outbox_' || broken, HINT = advice;
END $$;
CREATE TRIGGER outbox_fits BEFORE INSERT OR UPDATE OF payload, headers ON tickwright.outbox FOR EACH ROW
  WHEN (NOT (tickwright.json_fits(NEW.payload) AND tickwright.json_fits(NEW.headers) AND octet_length(NEW.headers::text) <= 262144))
  EXECUTE FUNCTION tickwright.refuse_message();

-- Rows that no relay can carry stay until somebody deletes them, and a claim looks at each of their destinations in turn.
CREATE OR REPLACE FUNCTION tickwright.ring_outbox() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  refused text;
BEGIN
  IF NOT tickwright.is_ours() THEN
    SELECT destination INTO refused FROM new_rows WHERE tickwright.is_internal(destination) LIMIT 1;
    IF FOUND THEN
      RAISE EXCEPTION 'destination_reserved: only Tickwright itself sends to %', left(refused, 200)
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'Use a destination of your own: an exchange or a topic without Tickwright''s prefix, or an https:// URL.';
    END IF;
    SELECT destination INTO refused FROM new_rows WHERE destination !~ '^(https?|wss?|amqp|kafka|pg):' LIMIT 1;
    IF FOUND THEN
      RAISE EXCEPTION 'destination_unknown: no relay sends to %', left(refused, 200)
        USING ERRCODE = 'check_violation', CONSTRAINT = 'outbox_destination',
              HINT = 'Begin it with https://, wss://, ws:, amqp:, kafka: or pg:.';
    END IF;
  END IF;
  IF EXISTS (SELECT FROM new_rows WHERE next_at <= clock_timestamp() + interval '1 second')
     AND NOT pg_try_advisory_xact_lock_shared(7313, 3) THEN
    PERFORM pg_notify('tickwright_outbox', '');
  END IF;
  RETURN NULL;
END $$;
