-- A job may have tags and metadata, by which it is found, and a pending one can be edited under its version. The columns are NULL where a job has none, so that
-- its row does not grow. Forward on a live system: columns without a default are added. Live jobs and dead letters are read once, for their index (0.5 s for a
-- million live jobs), and nothing else reads or writes them meanwhile. A table of finished jobs above 16 MB gets no index: searches read it from its newest job.

------------------------------------------------------------------------------------------------ columns
ALTER TABLE tickwright.scheduled_tasks ADD COLUMN tags text[] COLLATE "C", ADD COLUMN metadata jsonb, ADD COLUMN edits integer;
COMMENT ON COLUMN tickwright.scheduled_tasks.tags IS '1 to 20 different labels of 1 to 100 characters; NULL without one.';
COMMENT ON COLUMN tickwright.scheduled_tasks.metadata IS 'A JSON object of its user, for searches; NULL without one.';
COMMENT ON COLUMN tickwright.scheduled_tasks.edits IS
  'How often its payload, priority, tags or metadata were edited; NULL for never. Its version is fence + edits + 1.';

CREATE FUNCTION tickwright.tags_fit(tags text[]) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(array_ndims(tags) = 1 AND cardinality(tags) <= 20
                AND (SELECT count(DISTINCT u.tag) FILTER (WHERE char_length(u.tag) BETWEEN 1 AND 100) FROM unnest(tags) AS u (tag)) = cardinality(tags), false);
COMMENT ON FUNCTION tickwright.tags_fit(text[]) IS 'Whether a job may have these tags.';

CREATE FUNCTION tickwright.metadata_fits(metadata jsonb) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN jsonb_typeof(metadata) = 'object' AND tickwright.json_fits(metadata) THEN octet_length(metadata::text) <= 32768 ELSE false END;
COMMENT ON FUNCTION tickwright.metadata_fits(jsonb) IS 'Whether a job may have this metadata.';

CREATE FUNCTION tickwright.refuse_details(tags text[], metadata jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  rule text;
  advice text;
BEGIN
  SELECT r.rule, r.advice INTO rule, advice FROM (VALUES
    ('tags',     tags IS NOT NULL AND NOT tickwright.tags_fit(tags), 'tags: 1 to 20 different ones of 1 to 100 characters; NULL for none'),
    ('metadata', metadata IS NOT NULL AND NOT tickwright.metadata_fits(metadata), 'metadata: a JSON object of at most 32 KiB as text; NULL for none')
  ) AS r (rule, broken, advice) WHERE r.broken LIMIT 1;
  IF rule IS NOT NULL THEN
    RAISE EXCEPTION 'job refused: %', advice
      USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_' || rule, HINT = advice;
  END IF;
END $$;
COMMENT ON FUNCTION tickwright.refuse_details IS 'Refuse tags or metadata that no job may have.';

CREATE OR REPLACE FUNCTION tickwright.refuse_new_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  broken tickwright.scheduled_tasks;
BEGIN
  SELECT n.* INTO broken FROM new_rows n
   WHERE NOT tickwright.new_job_fits(n.status, n.owner, n.attempts, n.fence, n.task_type, n.execute_at, n.max_attempts, n.priority,
                                     n.timeout_ms, n.payload, n.traceparent, n.request_digest)
      OR n.tags IS NOT NULL AND NOT tickwright.tags_fit(n.tags)
      OR n.metadata IS NOT NULL AND NOT tickwright.metadata_fits(n.metadata)
      OR n.edits IS NOT NULL
   LIMIT 1;
  IF FOUND THEN
    PERFORM tickwright.refuse_details(broken.tags, broken.metadata);
    PERFORM tickwright.refuse_job(broken);
  END IF;
  RETURN NULL;
END $$;

------------------------------------------------------------------------------------------------ edits
CREATE FUNCTION tickwright.edit_job() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF OLD.owner IS NOT NULL THEN
    RAISE EXCEPTION 'job % is running; it cannot be edited', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_running', HINT = 'Wait until its attempt ends.';
  END IF;
  PERFORM tickwright.refuse_details(NEW.tags, NEW.metadata);
  NEW.edits := coalesce(OLD.edits, 0) + 1;
  NEW.updated_at := clock_timestamp();
  PERFORM tickwright.notify_of_job(coalesce(NEW.retry_at, NEW.execute_at));   -- a claim may have passed by the locked row
  RETURN NEW;
END $$;
COMMENT ON FUNCTION tickwright.edit_job IS 'A pending job is edited: its version rises. Refused for a job that a worker holds, which has read it already.';
CREATE TRIGGER scheduled_tasks_edits BEFORE UPDATE OF payload, priority, tags, metadata ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN ((OLD.payload, OLD.priority, OLD.tags, OLD.metadata) IS DISTINCT FROM (NEW.payload, NEW.priority, NEW.tags, NEW.metadata))
  EXECUTE FUNCTION tickwright.edit_job();

------------------------------------------------------------------------------------------------ inserts
CREATE FUNCTION tickwright.tags_of(details jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE WHEN details ? 'tags' THEN ARRAY(SELECT jsonb_array_elements_text(details -> 'tags')) END;
COMMENT ON FUNCTION tickwright.tags_of(jsonb) IS 'The tags in the details of a job, in their order; NULL without any.';

-- insert_each (0031) with the details of each job, as JSON or NULL; earlier releases call the other one.
CREATE FUNCTION tickwright.insert_each(
  patience text, execute_ats timestamptz[], task_types text[], payloads text[], most_attempts integer[], priorities smallint[], timeouts integer[],
  expire_ats timestamptz[], delays interval[], traceparents text[], keys text[], digests bytea[], details text[]
) RETURNS TABLE (job_id bigint, code text, message text) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  job record;
BEGIN
  IF patience IS NOT NULL THEN
    PERFORM set_config('lock_timeout', patience, true);
  END IF;
  FOR job IN
    SELECT * FROM unnest(execute_ats, task_types, payloads, most_attempts, priorities, timeouts, expire_ats, delays, traceparents, keys, digests, details)
      AS u (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, delay, traceparent, idempotency_key, request_digest, details)
  LOOP
    code := NULL;
    message := NULL;
    BEGIN
      INSERT INTO tickwright.scheduled_tasks
             (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, traceparent, idempotency_key, request_digest, tags, metadata)
      VALUES (coalesce(job.execute_at, now() + coalesce(job.delay, interval '0')), job.task_type, CAST(job.payload AS jsonb), job.max_attempts,
              job.priority, job.timeout_ms, job.expires_at, job.traceparent, job.idempotency_key, job.request_digest,
              tickwright.tags_of(CAST(job.details AS jsonb)), CAST(job.details AS jsonb) -> 'metadata')
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
COMMENT ON FUNCTION tickwright.insert_each(text, timestamptz[], text[], text[], integer[], smallint[], integer[], timestamptz[], interval[], text[], text[],
                                           bytea[], text[]) IS 'The function of the same name, for jobs that may have tags and metadata.';

------------------------------------------------------------------------------------------------ searches
-- Jobs without tags and metadata are not in these indexes, and a claim changes none of their columns.
CREATE INDEX scheduled_tasks_details ON tickwright.scheduled_tasks USING gin (tags, metadata jsonb_path_ops)
 WHERE tags IS NOT NULL OR metadata IS NOT NULL;
CREATE INDEX scheduled_tasks_dead_details ON tickwright.scheduled_tasks_dead USING gin (tags, metadata jsonb_path_ops)
 WHERE tags IS NOT NULL OR metadata IS NOT NULL;

CREATE FUNCTION tickwright.index_details(name text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('CREATE INDEX %I ON tickwright.%I USING gin (tags, metadata jsonb_path_ops) WHERE tags IS NOT NULL OR metadata IS NOT NULL',
                 name || '_details', name);
END $$;
COMMENT ON FUNCTION tickwright.index_details IS 'Create the index of tags and metadata of a table of finished jobs.';

CREATE OR REPLACE FUNCTION tickwright.ensure_history(at timestamptz) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  name text := tickwright.history_table(at);
BEGIN
  IF to_regclass('tickwright.' || name) IS NULL THEN
    PERFORM FROM tickwright.installation FOR UPDATE;
    IF to_regclass('tickwright.' || name) IS NULL THEN
      EXECUTE format('CREATE TABLE tickwright.%I (PRIMARY KEY (id)) INHERITS (tickwright.scheduled_tasks)', name);
      EXECUTE format('CREATE TRIGGER final BEFORE UPDATE ON tickwright.%I FOR EACH ROW '
                     'EXECUTE FUNCTION tickwright.guard_finished_job()', name);
      PERFORM tickwright.index_details(name);
    END IF;
  END IF;
  RETURN name;
END $$;

-- The tables of finished jobs that are there and small, such as that of tomorrow.
DO $$ BEGIN
  PERFORM tickwright.index_details(c.relname)
     FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'tickwright.scheduled_tasks'::regclass AND c.relname ~ '^scheduled_tasks_[0-9]{8}$' AND pg_relation_size(c.oid) < 16777216;
END $$;

------------------------------------------------------------------------------------------------ roles that use plain SQL only
-- The rights of the revisions before, with more columns.
DO $$ BEGIN
  EXECUTE format('CREATE OR REPLACE VIEW tickwright.app_rights AS '
                 'SELECT r.relation, r.privilege, r.columns || more.columns AS columns FROM (%s) AS r '
                 '  LEFT JOIN (VALUES (''scheduled_tasks'', ''INSERT'', ''{tags,metadata}''::text[]), '
                 '                    (''scheduled_tasks'', ''UPDATE'', ''{payload,priority,tags,metadata}'')) AS more (relation, privilege, columns) '
                 '    USING (relation, privilege)', rtrim(pg_get_viewdef('tickwright.app_rights'::regclass), ';'));
END $$;
