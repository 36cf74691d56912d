-- A job may belong to a group, such as a customer: its type says how many jobs of one group run at once, how many start per second, and whether they run one
-- after another. A pending job with a group is parked: it is due at infinity, so that no claim of jobs without groups reads it, nor one of the release before,
-- and due_at is when it is due. See docs/adr/0041. Forward on a live system: columns are added, no row is written. Live jobs and dead letters are read once, for
-- their indexes, which contain no row then. The release before claims no job with a group; all else that it does to one keeps these rules, because triggers do.

------------------------------------------------------------------------------------------------ columns
ALTER TABLE tickwright.scheduled_tasks ADD COLUMN group_key text COLLATE "C", ADD COLUMN due_at timestamptz;
COMMENT ON COLUMN tickwright.scheduled_tasks.group_key IS 'The group of the job, 1 to 255 bytes; NULL without one. Limits of its type hold for each group.';
COMMENT ON COLUMN tickwright.scheduled_tasks.due_at IS
  'When a pending job with a group is due, whose retry_at is infinity then. Tickwright''s: NULL for every other job.';
CREATE INDEX scheduled_tasks_grouped ON tickwright.scheduled_tasks (task_type, group_key, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX scheduled_tasks_in_order ON tickwright.scheduled_tasks (task_type, group_key, id) WHERE due_at IS NOT NULL;
CREATE INDEX scheduled_tasks_dead_grouped ON tickwright.scheduled_tasks_dead (task_type, group_key, id) WHERE group_key IS NOT NULL;

ALTER TABLE tickwright.task_types
  ADD COLUMN group_limit integer CHECK (group_limit BETWEEN 1 AND 1000),
  ADD COLUMN group_rate_per_s double precision CHECK (group_rate_per_s > 0),
  ADD COLUMN group_order text CHECK (group_order IN ('stop', 'skip', 'continue'));
COMMENT ON COLUMN tickwright.task_types.group_limit IS 'How many jobs of one group run at once; NULL for any number.';
COMMENT ON COLUMN tickwright.task_types.group_rate_per_s IS 'How many jobs of one group start per second at the most; NULL for any number.';
COMMENT ON COLUMN tickwright.task_types.group_order IS
  'The jobs of a group run one after another, by id; behind a failed one the group stops, skips it, or does not even wait for retries. NULL: in any order.';

------------------------------------------------------------------------------------------------ groups
CREATE TABLE tickwright.job_groups (
  task_type varchar(50) COLLATE "C" NOT NULL,
  group_key text COLLATE "C" NOT NULL,
  ready_at  timestamptz,
  from_at   timestamptz NOT NULL DEFAULT '-infinity',
  free_at   timestamptz,
  more      boolean    NOT NULL DEFAULT false,
  held      bigint[]   NOT NULL DEFAULT '{}',
  places    smallint[] NOT NULL DEFAULT '{}',
  stopped_by bigint,
  passed_id bigint,
  PRIMARY KEY (task_type, group_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 1);
CREATE INDEX job_groups_ready ON tickwright.job_groups (task_type, ready_at) WHERE ready_at IS NOT NULL;
CREATE INDEX job_groups_stopped ON tickwright.job_groups (task_type, group_key) WHERE stopped_by IS NOT NULL;
COMMENT ON TABLE tickwright.job_groups IS 'When claims look at a group next. Written by claims only, one at a time for each type; what runs is in scheduled_tasks.';
COMMENT ON COLUMN tickwright.job_groups.ready_at IS 'A claim looks at the group then, the earliest first; NULL until a hint.';
COMMENT ON COLUMN tickwright.job_groups.from_at IS 'No pending job of the group that is free to be claimed was due before, when the last claim found more than it could take.';
COMMENT ON COLUMN tickwright.job_groups.free_at IS 'The first start that is free at the rate of the group.';
COMMENT ON COLUMN tickwright.job_groups.more IS 'The last claim may have left jobs that are due: the end of one of its jobs is a hint.';
COMMENT ON COLUMN tickwright.job_groups.held IS 'The jobs that claims took and that may not have ended.';
COMMENT ON COLUMN tickwright.job_groups.places IS 'For each of them its place, 1 to the limit of the group; those in one place run one after another, in one worker.';
COMMENT ON COLUMN tickwright.job_groups.stopped_by IS 'The dead letter behind which the group stopped, for lists.';
COMMENT ON COLUMN tickwright.job_groups.passed_id IS 'Dead letters up to this id do not stop the group: an operator let it go on.';

CREATE TABLE tickwright.job_group_hints (
  task_type varchar(50) COLLATE "C" NOT NULL,
  group_key text COLLATE "C" NOT NULL,
  ready_at  timestamptz NOT NULL,
  due_at    timestamptz
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 1);
CREATE INDEX job_group_hints_ready ON tickwright.job_group_hints (task_type, ready_at);
COMMENT ON TABLE tickwright.job_group_hints IS
  'Groups in which something changed: a job came, returned, or ended outside of its worker. Only appended to, so that no transaction waits for another; claims delete what they have read.';
COMMENT ON COLUMN tickwright.job_group_hints.due_at IS 'When the job that came or returned is due; NULL for other changes.';


------------------------------------------------------------------------------------------------ parked jobs
CREATE FUNCTION tickwright.park_job() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF octet_length(NEW.group_key) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'job refused: group_key: 1 to 255 bytes; NULL for none'
      USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_group', HINT = 'group_key: 1 to 255 bytes; NULL for none';
  END IF;
  IF NEW.status = 'pending' AND NEW.group_key IS NOT NULL THEN
    IF NEW.retry_at IS DISTINCT FROM 'infinity' OR NEW.due_at IS NULL THEN
      NEW.due_at := coalesce(nullif(NEW.retry_at, 'infinity'), NEW.execute_at);
      NEW.retry_at := 'infinity';
    END IF;
    IF TG_OP = 'UPDATE' THEN                                      -- a claim may have passed by the locked row, also where nothing changes
      INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at, due_at)
      VALUES (NEW.task_type, NEW.group_key, CASE WHEN OLD.status = 'pending' THEN greatest(NEW.due_at, clock_timestamp()) ELSE clock_timestamp() END, NEW.due_at);
    END IF;
  ELSIF NEW.due_at IS NOT NULL THEN                             -- it starts, ends or leaves its group by other means than a claim
    NEW.retry_at := nullif(NEW.due_at, NEW.execute_at);
    NEW.due_at := NULL;
  END IF;
  IF TG_OP = 'UPDATE' THEN
    IF OLD.group_key IS NOT NULL AND (OLD.group_key, OLD.task_type) IS DISTINCT FROM (NEW.group_key, NEW.task_type) THEN
      INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at) VALUES (OLD.task_type, OLD.group_key, clock_timestamp());
    END IF;
  END IF;
  RETURN NEW;
END $$;
COMMENT ON FUNCTION tickwright.park_job IS 'A pending job with a group is due at infinity and has its due time in due_at, whatever wrote it; no other job has a due_at.';
REVOKE EXECUTE ON FUNCTION tickwright.park_job() FROM PUBLIC;

-- Behind the other triggers for rows, by its name: those release, cancel and reschedule.
CREATE TRIGGER scheduled_tasks_waits_in_group BEFORE INSERT ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (NEW.group_key IS NOT NULL) EXECUTE FUNCTION tickwright.park_job();
CREATE TRIGGER scheduled_tasks_waits_in_group_again
  BEFORE UPDATE OF status, execute_at, retry_at, group_key, task_type, payload, priority, tags, metadata, awaited ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (NEW.group_key IS NOT NULL AND (NEW.status = 'pending' OR NEW.due_at IS NOT NULL) OR NEW.group_key IS DISTINCT FROM OLD.group_key)
  EXECUTE FUNCTION tickwright.park_job();

------------------------------------------------------------------------------------------------ hints
CREATE OR REPLACE FUNCTION tickwright.ring_doorbell() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  first_due timestamptz;
  grouped bigint;
BEGIN
  SELECT min(coalesce(n.due_at, n.retry_at, n.execute_at)), count(n.due_at) INTO first_due, grouped FROM new_rows n;
  IF grouped > 0 THEN
    INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at, due_at)
    SELECT n.task_type, n.group_key, greatest(min(n.due_at), clock_timestamp()), min(n.due_at) FROM new_rows n WHERE n.due_at IS NOT NULL GROUP BY 1, 2;
    PERFORM pg_notify('tickwright_types', '')                   -- workers read that the type has groups, where its settings do not say so
       FROM (SELECT DISTINCT n.task_type FROM new_rows n WHERE n.due_at IS NOT NULL) AS used JOIN tickwright.task_types k ON k.name = used.task_type
      WHERE k.group_limit IS NULL AND k.group_rate_per_s IS NULL AND k.group_order IS NULL
        AND NOT EXISTS (SELECT FROM tickwright.job_groups g WHERE g.task_type = used.task_type);
  END IF;
  IF first_due <= clock_timestamp() + interval '1.5 seconds' THEN
    PERFORM tickwright.notify_of_job(first_due);
  END IF;
  RETURN NULL;
END $$;

REVOKE EXECUTE ON FUNCTION tickwright.ring_doorbell() FROM PUBLIC;

CREATE FUNCTION tickwright.leave_group() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at) VALUES (OLD.task_type, OLD.group_key, clock_timestamp());
  RETURN NULL;
END $$;
COMMENT ON FUNCTION tickwright.leave_group IS 'A job with a group ends or is deleted, or its dead letter is deleted or runs again: claims look at the group.';
REVOKE EXECUTE ON FUNCTION tickwright.leave_group() FROM PUBLIC;
CREATE TRIGGER scheduled_tasks_left_group AFTER DELETE ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (OLD.group_key IS NOT NULL) EXECUTE FUNCTION tickwright.leave_group();
CREATE TRIGGER scheduled_tasks_dead_left AFTER DELETE ON tickwright.scheduled_tasks_dead FOR EACH ROW
  WHEN (OLD.group_key IS NOT NULL) EXECUTE FUNCTION tickwright.leave_group();

------------------------------------------------------------------------------------------------ inserts one by one
-- insert_each (0037) with the groups; earlier releases call it as before, without any.
CREATE OR REPLACE FUNCTION tickwright.insert_each(
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
             (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, traceparent, idempotency_key, request_digest, tags, metadata, group_key)
      VALUES (coalesce(job.execute_at, now() + coalesce(job.delay, interval '0')), job.task_type, CAST(job.payload AS jsonb), job.max_attempts,
              job.priority, job.timeout_ms, job.expires_at, job.traceparent, job.idempotency_key, job.request_digest,
              tickwright.tags_of(CAST(job.details AS jsonb)), CAST(job.details AS jsonb) -> 'metadata', CAST(job.details AS jsonb) ->> 'group')
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

------------------------------------------------------------------------------------------------ roles that use plain SQL only
DO $$ BEGIN
  EXECUTE format('CREATE OR REPLACE VIEW tickwright.app_rights AS '
                 'SELECT r.relation, r.privilege, r.columns || more.columns AS columns FROM (%s) AS r '
                 '  LEFT JOIN (VALUES (''scheduled_tasks'', ''INSERT'', ''{group_key}''::text[]), '
                 '                    (''task_types'', ''SELECT'', ''{group_limit,group_rate_per_s,group_order}'')) AS more (relation, privilege, columns) '
                 '    USING (relation, privilege)', rtrim(pg_get_viewdef('tickwright.app_rights'::regclass), ';'));
END $$;
