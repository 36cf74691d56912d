-- What a role for plain SQL could write that cannot be shown, and could hold for as long as it likes. Forward on a live system: trackers and
-- dead letters are read once, a row is written where an instant is out of range, triggers and functions are replaced. Older releases read the same.

------------------------------------------------------------------------------------------------ instants from 1970 to 9998
CREATE FUNCTION tickwright.shown_at(at timestamptz) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN at IS NOT NULL THEN least(greatest(at, '1970-01-01Z'::timestamptz), '9998-12-31 23:59:59.999999Z'::timestamptz) END;
COMMENT ON FUNCTION tickwright.shown_at(timestamptz) IS 'The nearest instant that programs can show: PostgreSQL has earlier and later ones.';

UPDATE tickwright.trackers
   SET created_at = tickwright.shown_at(created_at), tracking_until = tickwright.shown_at(tracking_until),
       last_polled_at = tickwright.shown_at(last_polled_at)
 WHERE (created_at, tracking_until, last_polled_at) IS DISTINCT FROM
       (tickwright.shown_at(created_at), tickwright.shown_at(tracking_until), tickwright.shown_at(last_polled_at));
UPDATE tickwright.tracker_intake
   SET created_at = tickwright.shown_at(created_at), tracking_until = tickwright.shown_at(tracking_until),
       last_polled_at = tickwright.shown_at(last_polled_at)
 WHERE (created_at, tracking_until, last_polled_at) IS DISTINCT FROM
       (tickwright.shown_at(created_at), tickwright.shown_at(tracking_until), tickwright.shown_at(last_polled_at));

-- Live jobs and dead letters, which can become live again; what is finished for good is clamped when it is shown.
UPDATE ONLY tickwright.scheduled_tasks SET expires_at = tickwright.shown_at(expires_at) WHERE expires_at <> tickwright.shown_at(expires_at);
DO $$ BEGIN
  IF EXISTS (SELECT FROM tickwright.scheduled_tasks_dead WHERE expires_at <> tickwright.shown_at(expires_at)) THEN
    ALTER TABLE tickwright.scheduled_tasks_dead DISABLE TRIGGER scheduled_tasks_dead_final;
    UPDATE tickwright.scheduled_tasks_dead SET expires_at = tickwright.shown_at(expires_at) WHERE expires_at <> tickwright.shown_at(expires_at);
    ALTER TABLE tickwright.scheduled_tasks_dead ENABLE TRIGGER scheduled_tasks_dead_final;
  END IF;
END $$;

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
    ('payload',      pg_column_size(job.payload) > 1048576, 'payload: at most 1 MiB; keep large things elsewhere'),
    ('new',          true, 'status, attempts, fence and owner are Tickwright''s; leave them out')
  ) AS r (rule, broken, advice) WHERE r.broken LIMIT 1;
  RAISE EXCEPTION 'job refused: %', advice
    USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_' || rule, HINT = advice;
END $$;
CREATE TRIGGER scheduled_tasks_expires BEFORE INSERT OR UPDATE OF expires_at ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (NEW.expires_at < '1970-01-01Z' OR NEW.expires_at >= '9999-01-01Z')
  EXECUTE FUNCTION tickwright.refuse_new_job();

-- Before the triggers that write, in the order of names, what is given; behind the one that registers, what it made of that.
CREATE FUNCTION tickwright.check_tracker_times() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  broken text;
BEGIN
  SELECT given.name INTO broken
    FROM (VALUES ('created_at', NEW.created_at), ('tracking_until', NEW.tracking_until), ('last_polled_at', NEW.last_polled_at)) AS given (name, at)
   WHERE given.at <> tickwright.shown_at(given.at) LIMIT 1;
  IF FOUND THEN
    PERFORM tickwright.refuse_tracker('invalid_tracker', broken || ': between 1970 and 9998');
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER shipment_polling_tracker_given INSTEAD OF INSERT OR UPDATE ON tickwright.shipment_polling_tracker
  FOR EACH ROW EXECUTE FUNCTION tickwright.check_tracker_times();
CREATE TRIGGER shipment_polling_tracker_kept INSTEAD OF INSERT ON tickwright.shipment_polling_tracker
  FOR EACH ROW EXECUTE FUNCTION tickwright.check_tracker_times();

------------------------------------------------------------------------------------------------ locks
-- Any user may hold any advisory lock; these rows are locked only by roles with a right to change them. 16384 of them by the hash of an entity:
-- two entities with one row wait for each other for the length of a claim. While consumers of older releases run too, which do not lock
-- them, two consumers may begin runs of one entity at once.
CREATE TABLE tickwright.fanout_turns (
  turn integer PRIMARY KEY
);
INSERT INTO tickwright.fanout_turns SELECT * FROM generate_series(0, 16383);
COMMENT ON TABLE tickwright.fanout_turns IS 'Rows to lock: runs of an entity are counted and begun by one consumer at a time. Never changed.';

-- With DELETE on a relation a role may also LOCK TABLE in every mode, on a view with all tables behind it.
CREATE FUNCTION tickwright.delete_tracker(tracker_id bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM tickwright.shipment_polling_tracker WHERE id = tracker_id;
  RETURN FOUND;
END $$;
COMMENT ON FUNCTION tickwright.delete_tracker(bigint) IS 'Delete a tracker; whether there was one. For roles without DELETE.';
CREATE FUNCTION tickwright.delete_entity(entity_code text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM tickwright.entities WHERE code = entity_code;
  RETURN FOUND;
END $$;
COMMENT ON FUNCTION tickwright.delete_entity(text) IS 'Delete an entity; whether there was one. For roles without DELETE.';
REVOKE EXECUTE ON FUNCTION tickwright.delete_tracker(bigint), tickwright.delete_entity(text) FROM PUBLIC;

CREATE OR REPLACE VIEW tickwright.app_rights AS
SELECT r.relation, r.privilege, string_to_array(r.columns, ' ') AS columns
  FROM (VALUES
    ('scheduled_tasks', 'SELECT', NULL),
    ('scheduled_tasks', 'INSERT', 'execute_at task_type payload priority max_attempts timeout_ms expires_at idempotency_key '
                                  'request_digest traceparent'),
    ('scheduled_tasks', 'UPDATE', 'status execute_at'),
    ('scheduled_tasks_dead', 'SELECT', NULL),
    ('job_keys', 'SELECT', NULL),
    ('task_types', 'SELECT', 'name timeout_ms max_attempts retry_base_ms retry_factor retry_cap_ms final_statuses concurrency rate_per_s '
                             'keep_history paused_at gone_at version created_at updated_at'),
    ('outbox', 'SELECT', 'id'),
    ('outbox', 'INSERT', 'destination key payload headers'),
    ('shipment_polling_tracker', 'SELECT', NULL),
    ('shipment_polling_tracker', 'INSERT', 'account_id partner external_id status created_at last_polled_at tracking_until'),
    ('shipment_polling_tracker', 'UPDATE', 'status tracking_until'),
    ('entities', 'SELECT', NULL),
    ('entities', 'INSERT', 'code party is_polling_enabled polling_enabled_modules partner'),
    ('entities', 'UPDATE', 'party is_polling_enabled polling_enabled_modules partner'),
    ('modules', 'SELECT', NULL),
    ('fanout_cursors', 'SELECT', NULL)
  ) AS r (relation, privilege, columns);
CREATE OR REPLACE FUNCTION tickwright.app_role_statements(wanted text) RETURNS SETOF text LANGUAGE sql STABLE AS $$
  SELECT DISTINCT format('REVOKE ALL ON tickwright.%I FROM %I', g.relation, wanted)
    FROM tickwright.granted_rights g WHERE g.role = wanted AND g.relation IS NOT NULL AND pg_has_role(g.owner, 'USAGE')
  UNION ALL
  SELECT DISTINCT format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA tickwright REVOKE ALL ON %s FROM %I',
                         pg_get_userbyid(g.owner), k.kind, wanted)
    FROM tickwright.granted_rights g CROSS JOIN (VALUES ('TABLES'), ('SEQUENCES'), ('FUNCTIONS')) AS k (kind)
   WHERE g.role = wanted AND g.relation IS NULL AND g.attribute IS NULL AND pg_has_role(g.owner, 'USAGE')
  UNION ALL
  SELECT format('REVOKE CREATE ON SCHEMA tickwright FROM %I', wanted)
  UNION ALL
  SELECT format('GRANT USAGE ON SCHEMA tickwright TO %I', wanted)
  UNION ALL
  SELECT format('GRANT %s%s ON tickwright.%I TO %I', r.privilege, ' (' || array_to_string(r.columns, ', ') || ')', r.relation, wanted)
    FROM tickwright.app_rights r
  UNION ALL
  SELECT format('GRANT EXECUTE ON FUNCTION tickwright.delete_tracker(bigint), tickwright.delete_entity(text) TO %I', wanted)
$$;

------------------------------------------------------------------------------------------------ sequences
-- It moves sequences, which no rollback takes back, so it does so only for roles that run Tickwright, as is_ours tells them apart: the role
-- that logged in, for its own rights are those of the owner. Every role may execute it, because processes may run as a role that owns nothing.
CREATE OR REPLACE FUNCTION tickwright.enter_timeline() RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
  before tickwright.timelines;
  now_id bigint;
  now_line text;
  forked text;
  change jsonb;
BEGIN
  IF pg_is_in_recovery() THEN RETURN NULL; END IF;
  SELECT system_identifier INTO now_id FROM pg_control_system();
  now_line := left(pg_walfile_name(pg_current_wal_lsn()), 8);
  SELECT * INTO before FROM tickwright.timelines ORDER BY no DESC LIMIT 1;
  IF (before.system_id, before.timeline) = (now_id, now_line) THEN RETURN NULL; END IF;
  IF NOT (has_table_privilege(session_user, 'tickwright.outbox', 'UPDATE')
          OR pg_has_role(session_user, (SELECT nspowner FROM pg_namespace WHERE nspname = 'tickwright'), 'MEMBER')) THEN RETURN NULL; END IF;
  LOCK TABLE tickwright.timelines IN SHARE ROW EXCLUSIVE MODE;
  SELECT * INTO before FROM tickwright.timelines ORDER BY no DESC LIMIT 1;
  IF (before.system_id, before.timeline) = (now_id, now_line) THEN RETURN NULL; END IF;
  PERFORM tickwright.move_sequences();
  BEGIN
    forked := (regexp_match(pg_read_file('pg_wal/' || now_line || '.history'), '([0-9A-F]+/[0-9A-F]+)[^\n]*\s*$'))[1];
  EXCEPTION WHEN insufficient_privilege OR undefined_file OR io_error THEN forked := NULL;
  END;
  INSERT INTO tickwright.timelines (no, system_id, timeline, forked_lsn, fence_floor)
  VALUES (before.no + 1, now_id, now_line, forked, before.fence_floor + 1000000000);
  UPDATE tickwright.workers SET lease_until = 'epoch' WHERE lost_at IS NULL;
  change := jsonb_build_object('old', before.timeline, 'new', now_line, 'forked_at_lsn', coalesce(forked, 'unknown'),
                               'noticed_at', clock_timestamp(), 'other_server', before.system_id <> now_id);
  INSERT INTO tickwright.audit (actor, action, subject, before, after)
  VALUES ('tickwright', 'database.timeline_changed', 'database', jsonb_build_object('timeline', before.timeline), change);
  RETURN change;
END $$;
