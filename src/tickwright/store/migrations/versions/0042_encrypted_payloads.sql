-- A task type may be encrypted: its payloads, results and progress are stored as envelopes, which only processes with the keys can read. See docs/adr/0044.
-- The database has no key. It refuses a payload of such a type that is no envelope, so that none is stored in plain text unnoticed. Forward on a live system:
-- columns with constant defaults and triggers are added, no row is read. A process of an earlier release would pass the envelope to a handler: declare a type
-- as encrypted when all processes have this release.

------------------------------------------------------------------------------------------------ task types
ALTER TABLE tickwright.task_types
  ADD COLUMN encrypted boolean NOT NULL DEFAULT false,
  ADD COLUMN deliver text CONSTRAINT task_types_deliver CHECK (deliver IS NULL OR encrypted AND deliver IN ('plain', 'cipher'));
CREATE INDEX task_types_encrypted ON tickwright.task_types (name) WHERE encrypted;
COMMENT ON COLUMN tickwright.task_types.encrypted IS 'Payloads, results and progress of its jobs are envelopes. It cannot be undone.';
COMMENT ON COLUMN tickwright.task_types.deliver IS
  'What its target gets: plain or cipher (the envelope). NULL: handlers, remote workers and callbacks get plain, brokers cipher.';

CREATE FUNCTION tickwright.keep_encrypted() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'task type % stays encrypted', OLD.name
    USING ERRCODE = 'check_violation', CONSTRAINT = 'task_types_encrypted', HINT = 'Its jobs may have envelopes. Use another type for plain payloads.';
END $$;
COMMENT ON FUNCTION tickwright.keep_encrypted IS 'Refuse to make an encrypted type a plain one.';
CREATE TRIGGER task_types_encrypted BEFORE UPDATE OF encrypted ON tickwright.task_types FOR EACH ROW
  WHEN (OLD.encrypted AND NOT NEW.encrypted) EXECUTE FUNCTION tickwright.keep_encrypted();

------------------------------------------------------------------------------------------------ payloads
CREATE FUNCTION tickwright.is_sealed(payload jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN jsonb_typeof(payload) = 'object'
            THEN payload - '$encrypted' = '{}' AND coalesce(payload #>> '{$encrypted,v}' = '1' AND jsonb_typeof(payload #> '{$encrypted,key}') = 'string'
                                                            AND payload #>> '{$encrypted,data}' ~ '^[A-Za-z0-9_-]{59,}$', false)
            ELSE false END;
COMMENT ON FUNCTION tickwright.is_sealed(jsonb) IS 'Whether a payload has the form of an envelope. Only a holder of its key can tell whether it opens.';

CREATE FUNCTION tickwright.payload_fits_type(type_name text, payload jsonb) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
RETURN tickwright.is_sealed(payload) OR NOT EXISTS (SELECT FROM tickwright.task_types y WHERE y.name = type_name AND y.encrypted);
COMMENT ON FUNCTION tickwright.payload_fits_type IS 'Whether a type may have this payload: an encrypted one has envelopes only.';

CREATE FUNCTION tickwright.refuse_plain() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'payload refused: its task type is encrypted, and this is no envelope'
    USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_sealed',
          HINT = 'Schedule it by REST or a client library, in a process that has the payload keys, or insert an envelope.';
END $$;
COMMENT ON FUNCTION tickwright.refuse_plain IS 'Refuse a plain payload of an encrypted type.';

-- Reads types in the name of roles that may not.
CREATE FUNCTION tickwright.refuse_plain_jobs() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM tickwright.task_types WHERE encrypted) THEN
    PERFORM FROM new_rows n JOIN tickwright.task_types y ON y.name = n.task_type AND y.encrypted WHERE NOT tickwright.is_sealed(n.payload) LIMIT 1;
    IF FOUND THEN
      PERFORM tickwright.refuse_plain();
    END IF;
  END IF;
  RETURN NULL;
END $$;
COMMENT ON FUNCTION tickwright.refuse_plain_jobs IS 'Refuse new jobs of encrypted types whose payloads are no envelopes.';
REVOKE EXECUTE ON FUNCTION tickwright.refuse_plain_jobs() FROM PUBLIC;
CREATE TRIGGER scheduled_tasks_sealed AFTER INSERT ON tickwright.scheduled_tasks
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION tickwright.refuse_plain_jobs();

-- Of workflows: a job that waits is checked when it is added. One whose type is encrypted since then, or would get results as arguments, fails when it is released.
CREATE TRIGGER scheduled_tasks_waiting_sealed AFTER INSERT ON tickwright.scheduled_tasks_waiting
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION tickwright.refuse_plain_jobs();
CREATE OR REPLACE FUNCTION tickwright.encrypted_types() RETURNS text[] LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(array_agg(y.name::text), '{}') FROM tickwright.task_types y WHERE y.encrypted
$$;
COMMENT ON FUNCTION tickwright.encrypted_types() IS 'The task types whose payloads are envelopes, into which no result can be written.';

CREATE FUNCTION tickwright.refuse_plain_edit() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT tickwright.payload_fits_type(NEW.task_type, NEW.payload) THEN
    PERFORM tickwright.refuse_plain();
  END IF;
  RETURN NEW;
END $$;
COMMENT ON FUNCTION tickwright.refuse_plain_edit IS 'Refuse a plain payload where a job or a schedule of an encrypted type is edited.';
CREATE TRIGGER scheduled_tasks_sealed_edit BEFORE UPDATE OF payload, task_type ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN ((OLD.payload, OLD.task_type) IS DISTINCT FROM (NEW.payload, NEW.task_type)) EXECUTE FUNCTION tickwright.refuse_plain_edit();
CREATE TRIGGER schedules_sealed BEFORE INSERT OR UPDATE OF payload, task_type ON tickwright.schedules FOR EACH ROW
  EXECUTE FUNCTION tickwright.refuse_plain_edit();

------------------------------------------------------------------------------------------------ roles that use plain SQL only
-- The rights of the revisions before, with more columns.
DO $$ BEGIN
  EXECUTE format('CREATE OR REPLACE VIEW tickwright.app_rights AS '
                 'SELECT r.relation, r.privilege, r.columns || more.columns AS columns FROM (%s) AS r '
                 '  LEFT JOIN (VALUES (''task_types'', ''SELECT'', ''{encrypted,deliver}''::text[])) AS more (relation, privilege, columns) '
                 '    USING (relation, privilege)', rtrim(pg_get_viewdef('tickwright.app_rights'::regclass), ';'));
END $$;
