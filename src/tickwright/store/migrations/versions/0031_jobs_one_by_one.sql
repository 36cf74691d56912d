-- Where one of many jobs could not be inserted, the others were inserted by a statement and a commit each: a round trip per job, for what one request had done.
-- A function inserts them one by one inside one statement. Forward on a live system: a function is added.

CREATE FUNCTION tickwright.insert_each(
  patience text, execute_ats timestamptz[], task_types text[], payloads text[], most_attempts integer[], priorities smallint[], timeouts integer[],
  expire_ats timestamptz[], delays interval[], traceparents text[], keys text[], digests bytea[]
) RETURNS TABLE (job_id bigint, code text, message text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  job record;
BEGIN
  IF patience IS NOT NULL THEN
    PERFORM set_config('lock_timeout', patience, true);
  END IF;
  FOR job IN
    SELECT * FROM unnest(execute_ats, task_types, payloads, most_attempts, priorities, timeouts, expire_ats, delays, traceparents, keys, digests)
      AS u (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, delay, traceparent, idempotency_key, request_digest)
  LOOP
    code := NULL;
    message := NULL;
    BEGIN
      INSERT INTO tickwright.scheduled_tasks
             (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, traceparent, idempotency_key, request_digest)
      VALUES (coalesce(job.execute_at, now() + coalesce(job.delay, interval '0')), job.task_type, CAST(job.payload AS jsonb), job.max_attempts,
              job.priority, job.timeout_ms, job.expires_at, job.traceparent, job.idempotency_key, job.request_digest)
          ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
      RETURNING id INTO job_id;                                   -- NULL where the key was taken
    EXCEPTION
      WHEN data_exception OR integrity_constraint_violation OR lock_not_available OR deadlock_detected THEN
        IF job.idempotency_key IS NULL AND SQLSTATE NOT LIKE '2%' THEN
          RAISE;                                                  -- the table is locked, for all of them
        END IF;
        job_id := NULL;
        code := SQLSTATE;
        message := SQLERRM;
    END;
    RETURN NEXT;
  END LOOP;
END $$;
COMMENT ON FUNCTION tickwright.insert_each IS
  'Insert jobs one by one, in order: the id of each, or why PostgreSQL refused it, or neither where its key is taken. A key that another transaction holds is '
  'waited for as long as patience says.';
