-- What comes in is checked once per statement. PostgreSQL plans the WHEN of a trigger with each statement: that of 0022 took 25 of the 70
-- microseconds of an INSERT of one job. A query of a trigger's function is planned once per session. Forward on a live system: no row is read.

------------------------------------------------------------------------------------------------ jobs
-- Parsed here, not where it is called: the search_path of the session that inserts chooses none of its operators.
CREATE FUNCTION tickwright.new_job_fits(
  status text, owner bigint, attempts integer, fence bigint, task_type text, execute_at timestamptz, max_attempts integer, priority integer,
  timeout_ms integer, payload jsonb, traceparent text, request_digest bytea
) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
RETURN status = 'pending' AND owner IS NULL AND attempts = 0 AND fence = 0
   AND task_type ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]*$'
   AND execute_at >= '1970-01-01Z' AND execute_at < '9999-01-01Z'
   AND max_attempts BETWEEN 1 AND 1000 AND priority BETWEEN -100 AND 100
   AND coalesce(timeout_ms, 1) BETWEEN 1 AND 86400000 AND tickwright.json_fits(payload)
   AND coalesce(octet_length(traceparent), 0) <= 512 AND coalesce(octet_length(request_digest), 0) <= 64;
COMMENT ON FUNCTION tickwright.new_job_fits IS 'Whether a user may add such a job; refuse_job says what is wrong with one that does not fit.';

CREATE FUNCTION tickwright.refuse_new_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  broken tickwright.scheduled_tasks;
BEGIN
  SELECT n.* INTO broken FROM new_rows n
   WHERE NOT tickwright.new_job_fits(n.status, n.owner, n.attempts, n.fence, n.task_type, n.execute_at, n.max_attempts, n.priority,
                                     n.timeout_ms, n.payload, n.traceparent, n.request_digest)
   LIMIT 1;
  IF FOUND THEN
    PERFORM tickwright.refuse_job(broken);
  END IF;
  RETURN NULL;
END $$;
DROP TRIGGER scheduled_tasks_new ON tickwright.scheduled_tasks;
CREATE TRIGGER scheduled_tasks_new AFTER INSERT ON tickwright.scheduled_tasks
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION tickwright.refuse_new_jobs();

------------------------------------------------------------------------------------------------ outbox
CREATE FUNCTION tickwright.message_fits(payload jsonb, headers jsonb) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
RETURN tickwright.json_fits(payload) AND tickwright.json_fits(headers) AND octet_length(headers::text) <= 262144;
COMMENT ON FUNCTION tickwright.message_fits(jsonb, jsonb) IS 'Whether the relay can carry a message with these.';

CREATE FUNCTION tickwright.refuse_messages() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  broken text;
  advice text;
BEGIN
  SELECT CASE WHEN tickwright.json_fits(n.payload) THEN 'headers' ELSE 'payload' END INTO broken
    FROM new_rows n WHERE NOT tickwright.message_fits(n.payload, n.headers) LIMIT 1;
  IF FOUND THEN
    advice := CASE broken WHEN 'headers' THEN 'headers: at most 256 KiB; write numbers such as 1e1000 as texts'
                          ELSE 'payload: at most 1 MiB, 2 MiB as text; write numbers such as 1e1000 as texts' END;
    RAISE EXCEPTION 'message refused: %', advice
      USING ERRCODE = 'check_violation', CONSTRAINT = 'outbox_' || broken, HINT = advice;
  END IF;
  RETURN NULL;
END $$;
DROP TRIGGER outbox_fits ON tickwright.outbox;
DROP FUNCTION tickwright.refuse_message();
CREATE TRIGGER outbox_fits AFTER INSERT ON tickwright.outbox
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION tickwright.refuse_messages();

------------------------------------------------------------------------------------------------ entities
-- Schedulers split the names of every entity, the alerts those of every list; 2,000 bytes were a thousand names. Rows that are there stay.
ALTER TABLE tickwright.entities ADD CONSTRAINT entities_at_most_50_modules
  CHECK (regexp_count(polling_enabled_modules, ',') < 50) NOT VALID;
