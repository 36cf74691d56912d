-- A job may be unique: by its type and chosen arguments, for a period, over chosen states. See docs/adr/0042. The rule is in a column that is NULL for every other
-- job; who holds a set of arguments is in a table of its own, which neither a claim nor an end locks. Forward on a live system: columns without a default, tables
-- and functions are added; a trigger of ends and its function are replaced. Earlier releases end unique jobs as these do, and insert none.

------------------------------------------------------------------------------------------------ tables
ALTER TABLE tickwright.scheduled_tasks ADD COLUMN uniqueness jsonb;
COMMENT ON COLUMN tickwright.scheduled_tasks.uniqueness IS
  'Of a unique job: digest (of type and arguments), by, period_s, over, on_conflict, replaced (how often a later request replaced something of it); else NULL.';
ALTER TABLE tickwright.task_types ADD COLUMN uniqueness jsonb;
COMMENT ON COLUMN tickwright.task_types.uniqueness IS 'The rule of its jobs, where requests have none of their own: by, period_s, over, on_conflict; else NULL.';

CREATE TABLE tickwright.job_uniques (
  digest    bytea       PRIMARY KEY CHECK (length(digest) = 32),
  job_id    bigint      NOT NULL,
  held_from timestamptz NOT NULL DEFAULT clock_timestamp(),
  until     timestamptz,
  kept      bigint      NOT NULL DEFAULT 0
) WITH (fillfactor = 70);
CREATE INDEX job_uniques_age ON tickwright.job_uniques (held_from);
COMMENT ON TABLE tickwright.job_uniques IS
  'The last job per set of unique arguments. It holds them while it is live in a state of its rule, or has a row in job_unique_ends, and until has not passed.';
COMMENT ON COLUMN tickwright.job_uniques.kept IS 'How many requests were answered with it; simultaneous ones, and those in transactions of callers, are not counted.';

CREATE TABLE tickwright.job_unique_ends (
  job_id bigint      PRIMARY KEY,
  status varchar(20) NOT NULL,
  until  timestamptz NOT NULL
);
CREATE INDEX job_unique_ends_until ON tickwright.job_unique_ends (until);
COMMENT ON TABLE tickwright.job_unique_ends IS
  'Unique jobs that ended in a state of their rule. Only inserted: an end that updated job_uniques would wait for callers with open transactions.';

------------------------------------------------------------------------------------------------ what is equal
CREATE FUNCTION tickwright.canonical_json(value jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  CASE jsonb_typeof(value)
    WHEN 'object' THEN
      RETURN '{' || coalesce((SELECT string_agg(to_jsonb(e.key)::text || ':' || tickwright.canonical_json(e.value), ',' ORDER BY e.key COLLATE "C")
                                FROM jsonb_each(value) AS e), '') || '}';
    WHEN 'array' THEN
      RETURN '[' || coalesce((SELECT string_agg(tickwright.canonical_json(e.value), ',' ORDER BY e.place)
                                FROM jsonb_array_elements(value) WITH ORDINALITY AS e (value, place)), '') || ']';
    WHEN 'number' THEN
      RETURN trim_scale(CAST(value AS numeric))::text;
    ELSE
      RETURN value::text;
  END CASE;
END $$;
COMMENT ON FUNCTION tickwright.canonical_json(jsonb) IS
  'JSON with sorted keys, without blanks, and one spelling per number: 1, 1.0 and 1e0 are equal. The rule of unique.py; a test keeps the two equal.';

CREATE FUNCTION tickwright.unique_digest(task_type text, payload jsonb, paths jsonb) RETURNS bytea LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  chosen jsonb := '{}';
  path text;
  step text;
  found jsonb;
BEGIN
  IF jsonb_typeof(paths) = 'array' THEN
    FOR path IN SELECT jsonb_array_elements_text(paths) LOOP
      found := payload;
      FOREACH step IN ARRAY string_to_array(path, '.') LOOP
        found := found -> step;                                    -- NULL where it is missing, or where there is no object
      END LOOP;
      IF found IS NOT NULL THEN
        chosen := chosen || jsonb_build_object(path, found);
      END IF;
    END LOOP;
    paths := (SELECT coalesce(jsonb_agg(e.name ORDER BY e.name COLLATE "C"), '[]') FROM jsonb_array_elements_text(paths) AS e (name));
  ELSE
    chosen := payload;
    paths := 'null';
  END IF;
  RETURN sha256(convert_to(tickwright.canonical_json(jsonb_build_object('type', task_type, 'by', paths, 'values', chosen)), 'UTF8'));
END $$;
COMMENT ON FUNCTION tickwright.unique_digest IS 'What is equal for two unique jobs; paths is an array of paths, or JSON null for the whole payload.';

CREATE FUNCTION tickwright.unique_rule(rule jsonb) RETURNS jsonb LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  broken text;
  period interval;
  conflict jsonb := coalesce(nullif(rule -> 'on_conflict', '"keep"'), '[]');
BEGIN
  BEGIN
    period := CAST(rule ->> 'period' AS interval);
  EXCEPTION WHEN data_exception THEN
    broken := 'period: an interval, such as 15m';
  END;
  IF jsonb_typeof(rule) <> 'object' OR EXISTS (SELECT FROM jsonb_object_keys(rule) AS k (name) WHERE k.name NOT IN ('by', 'period', 'over', 'on_conflict')) THEN
    broken := 'an object with by, period, over and on_conflict';
  ELSIF jsonb_typeof(coalesce(rule -> 'by', 'null')) NOT IN ('null', 'array') THEN
    broken := 'by: an array of names, or null for all arguments';
  ELSIF rule -> 'by' <> 'null' AND NOT (
    SELECT count(*) <= 20 AND count(DISTINCT e.value) = count(*)
           AND coalesce(bool_and(jsonb_typeof(e.value) = 'string' AND e.value #>> '{}' ~ '^[^.]+(\.[^.]+)*$' AND length(e.value #>> '{}') <= 200), true)
      FROM jsonb_array_elements(rule -> 'by') AS e) THEN
    broken := 'by: at most 20 different names of 1 to 200 characters, such as customer_id or order.id';
  ELSIF jsonb_typeof(coalesce(rule -> 'period', 'null')) NOT IN ('null', 'string') THEN
    broken := 'period: an interval with its unit, such as 15m';
  ELSIF period IS NOT NULL AND period NOT BETWEEN interval '1 second' AND interval '366 days' THEN
    broken := 'period: 1 second to 366 days';
  ELSIF jsonb_typeof(coalesce(rule -> 'over', '[]')) <> 'array' OR rule -> 'over' = '[]'
        OR NOT coalesce(rule -> 'over', '[]') <@ '["pending", "processing", "completed", "failed", "cancelled"]' THEN
    broken := 'over: states of pending, processing, completed, failed, cancelled';
  ELSIF jsonb_typeof(conflict) <> 'array' OR NOT conflict <@ '["payload", "time", "priority"]' THEN
    broken := 'on_conflict: "keep", or some of payload, time, priority';
  END IF;
  IF broken IS NOT NULL THEN
    RAISE EXCEPTION 'job refused: unique: %', broken
      USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_unique', HINT = broken;
  END IF;
  RETURN jsonb_build_object('by', coalesce(rule -> 'by', 'null'), 'period_s', date_part('epoch', period),
                            'over', coalesce(rule -> 'over', '["pending", "processing"]'), 'on_conflict', conflict);
END $$;
COMMENT ON FUNCTION tickwright.unique_rule(jsonb) IS 'A rule as it is stored, from what a user writes; refuses what no rule may have.';

------------------------------------------------------------------------------------------------ who holds
CREATE FUNCTION tickwright.unique_state(holder tickwright.job_uniques) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  live record;
BEGIN
  IF holder.until <= clock_timestamp() THEN
    RETURN NULL;
  END IF;
  SELECT t.status, t.uniqueness -> 'over' AS over INTO live FROM ONLY tickwright.scheduled_tasks t WHERE t.id = holder.job_id;
  IF FOUND THEN
    RETURN CASE WHEN live.over ? live.status THEN live.status END;
  END IF;                                                          -- its end is committed, so the next statement sees what it has left
  RETURN (SELECT e.status FROM tickwright.job_unique_ends e WHERE e.job_id = holder.job_id AND e.until > clock_timestamp());
END $$;
COMMENT ON FUNCTION tickwright.unique_state IS 'The status in which the last job of these arguments holds them; NULL if they are free.';

-- READ COMMITTED: each statement has a snapshot of its own. For each digest it locks the row of job_uniques or the pending job that it names. What locks a job
-- otherwise (a claim, an edit, an end) never locks that row, and the two locks of a job here do not exclude each other, so that nothing waits in a circle, and no
-- end waits for a caller.
CREATE TYPE tickwright.unique_answer AS (job_id bigint, outcome text, replaced text[], status text);
CREATE FUNCTION tickwright.put_unique(job tickwright.scheduled_tasks, is_caller boolean) RETURNS tickwright.unique_answer LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  wanted CONSTANT bytea := decode(job.uniqueness ->> 'digest', 'hex');
  conflict CONSTANT jsonb := job.uniqueness -> 'on_conflict';
  holder tickwright.job_uniques;
  state text;
  held_until timestamptz;
BEGIN
  IF job.idempotency_key IS NOT NULL
     AND (EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t WHERE t.idempotency_key = job.idempotency_key)
          OR EXISTS (SELECT FROM tickwright.job_keys k WHERE k.key = job.idempotency_key)) THEN
    RETURN NULL;                                                   -- the job of its key is the answer
  END IF;
  LOOP
    SELECT * INTO holder FROM tickwright.job_uniques u WHERE u.digest = wanted;
    IF FOUND THEN
      state := tickwright.unique_state(holder);
      IF state = 'pending' AND (conflict <> '[]' OR is_caller) THEN
        BEGIN
          RETURN tickwright.put_into_pending(job, holder, conflict);
        EXCEPTION WHEN SQLSTATE 'TW001' THEN                       -- it was claimed, or has ended: this has also released its lock
          CONTINUE;
        END;
      ELSIF state IS NOT NULL THEN
        RETURN (holder.job_id, 'existing', NULL, state)::tickwright.unique_answer;
      END IF;
    END IF;
    job.id := coalesce(job.id, nextval('tickwright.scheduled_tasks_id_seq'));
    held_until := clock_timestamp() + make_interval(secs => CAST(job.uniqueness ->> 'period_s' AS float8));
    INSERT INTO tickwright.job_uniques AS u (digest, job_id, until) VALUES (wanted, job.id, held_until)
        ON CONFLICT (digest) DO UPDATE SET job_id = excluded.job_id, held_from = excluded.held_from, until = excluded.until, kept = 0
     WHERE u.job_id = holder.job_id;                               -- of two that found it free, one
    EXIT WHEN FOUND;
  END LOOP;
  INSERT INTO tickwright.scheduled_tasks
         (id, execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, traceparent, idempotency_key, request_digest, tags, metadata,
          group_key, uniqueness)
  OVERRIDING SYSTEM VALUE
  VALUES (job.id, job.execute_at, job.task_type, job.payload, job.max_attempts, job.priority, job.timeout_ms, job.expires_at, job.traceparent,
          job.idempotency_key, job.request_digest, job.tags, job.metadata, job.group_key, job.uniqueness)
      ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
  IF NOT FOUND THEN
    RAISE unique_violation USING CONSTRAINT = 'scheduled_tasks_key', MESSAGE = 'a job with this idempotency key was inserted meanwhile', HINT = 'Try again.';
  END IF;
  RETURN (job.id, 'inserted', NULL, 'pending')::tickwright.unique_answer;
END $$;
COMMENT ON FUNCTION tickwright.put_unique IS
  'Insert a unique job, or say which job holds its arguments, and replace what its rule says while that one is pending. NULL where its idempotency key is taken. '
  'is_caller: in a transaction of a caller; a pending job that answers then starts after its commit.';

CREATE FUNCTION tickwright.put_into_pending(job tickwright.scheduled_tasks, holder tickwright.job_uniques, conflict jsonb) RETURNS tickwright.unique_answer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  due_at timestamptz;
BEGIN
  IF conflict = '[]' THEN                                          -- no claim, which locks FOR UPDATE; other callers may
    PERFORM FROM ONLY tickwright.scheduled_tasks t WHERE t.id = holder.job_id FOR KEY SHARE;
  ELSE
    PERFORM FROM ONLY tickwright.scheduled_tasks t WHERE t.id = holder.job_id FOR NO KEY UPDATE;
  END IF;
  SELECT * INTO holder FROM tickwright.job_uniques u WHERE u.digest = holder.digest AND u.job_id = holder.job_id;
  IF NOT FOUND OR tickwright.unique_state(holder) IS DISTINCT FROM 'pending' THEN
    RAISE SQLSTATE 'TW001';
  END IF;
  IF conflict <> '[]' THEN
    UPDATE ONLY tickwright.scheduled_tasks t
       SET payload = CASE WHEN conflict ? 'payload' THEN job.payload ELSE t.payload END,
           priority = CASE WHEN conflict ? 'priority' THEN job.priority ELSE t.priority END,
           execute_at = CASE WHEN conflict ? 'time' THEN job.execute_at ELSE t.execute_at END,
           expires_at = CASE WHEN conflict ? 'time' THEN job.expires_at ELSE t.expires_at END,
           retry_at = CASE WHEN conflict ? 'time' THEN NULL ELSE t.retry_at END,
           uniqueness = t.uniqueness || jsonb_build_object('replaced', coalesce(CAST(t.uniqueness ->> 'replaced' AS integer), 0) + 1),
           updated_at = clock_timestamp()
     WHERE t.id = holder.job_id;
  END IF;
  SELECT coalesce(t.due_at, t.retry_at, t.execute_at) INTO due_at FROM ONLY tickwright.scheduled_tasks t WHERE t.id = holder.job_id;
  PERFORM tickwright.notify_of_job(due_at);                        -- a claim may have passed by the locked row
  IF conflict = '[]' THEN
    RETURN (holder.job_id, 'existing', NULL, 'pending')::tickwright.unique_answer;
  END IF;
  RETURN (holder.job_id, 'replaced', ARRAY (SELECT jsonb_array_elements_text(conflict)), 'pending')::tickwright.unique_answer;
END $$;
COMMENT ON FUNCTION tickwright.put_into_pending IS 'Lock the pending job that holds the arguments of a new one, and replace what conflict says. SQLSTATE TW001: it does not any more.';

CREATE FUNCTION tickwright.insert_unique(
  each boolean, patience text, execute_ats timestamptz[], task_types text[], payloads text[], most_attempts integer[], priorities smallint[], timeouts integer[],
  expire_ats timestamptz[], delays interval[], traceparents text[], keys text[], digests bytea[], details text[]
) RETURNS TABLE (place bigint, job_id bigint, outcome text, replaced text[], status text, code text, message text) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  one record;
  job tickwright.scheduled_tasks;
  answer tickwright.unique_answer;
  kept_digests bytea[] := '{}';
BEGIN
  IF patience IS NOT NULL THEN
    PERFORM set_config('lock_timeout', patience, true);
  END IF;
  FOR one IN
    SELECT u.*, CAST(u.details AS jsonb) AS said
      FROM unnest(execute_ats, task_types, payloads, most_attempts, priorities, timeouts, expire_ats, delays, traceparents, keys, digests, details)
           WITH ORDINALITY AS u (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, delay, traceparent, idempotency_key,
                                 request_digest, details, place)
     ORDER BY CAST(u.details AS jsonb) -> 'unique' ->> 'digest' COLLATE "C", u.place      -- one order for all: no deadlock
  LOOP
    job := NULL;
    answer := NULL;
    code := NULL;
    message := NULL;
    BEGIN
      job.execute_at := coalesce(one.execute_at, now() + coalesce(one.delay, interval '0'));
      job.task_type := one.task_type;
      job.payload := CAST(one.payload AS jsonb);
      job.max_attempts := one.max_attempts;
      job.priority := one.priority;
      job.timeout_ms := one.timeout_ms;
      job.expires_at := one.expires_at;
      job.traceparent := one.traceparent;
      job.idempotency_key := one.idempotency_key;
      job.request_digest := one.request_digest;
      job.tags := tickwright.tags_of(one.said);
      job.metadata := one.said -> 'metadata';
      job.group_key := one.said ->> 'group';
      job.uniqueness := one.said -> 'unique';
      answer := tickwright.put_unique(job, patience IS NULL);
    EXCEPTION
      WHEN data_exception OR integrity_constraint_violation OR lock_not_available OR deadlock_detected THEN
        IF NOT each THEN
          RAISE;
        END IF;
        code := SQLSTATE;
        message := SQLERRM;
    END;
    IF answer.outcome = 'existing' AND patience IS NOT NULL THEN
      kept_digests := kept_digests || decode(job.uniqueness ->> 'digest', 'hex');
    END IF;
    place := one.place;
    job_id := answer.job_id;
    outcome := answer.outcome;
    replaced := answer.replaced;
    status := answer.status;
    RETURN NEXT;
  END LOOP;
  IF kept_digests <> '{}' THEN
    WITH free AS MATERIALIZED (
      SELECT u.digest FROM tickwright.job_uniques u WHERE u.digest = ANY (kept_digests) FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE tickwright.job_uniques u SET kept = u.kept + n.kept
      FROM (SELECT k.digest, count(*) AS kept FROM unnest(kept_digests) AS k (digest) JOIN free USING (digest) GROUP BY k.digest) AS n
     WHERE u.digest = n.digest;
  END IF;
END $$;
COMMENT ON FUNCTION tickwright.insert_unique IS
  'Insert unique jobs, in the order of their digests: for each what happened, or with each why PostgreSQL refused it, or neither where its key is taken. '
  'patience bounds a wait for another transaction; NULL is a transaction of a caller.';

CREATE FUNCTION tickwright.schedule_unique(
  task_type text, payload jsonb DEFAULT '{}', rule jsonb DEFAULT NULL, execute_at timestamptz DEFAULT NULL, priority integer DEFAULT 0,
  max_attempts integer DEFAULT NULL, timeout_ms integer DEFAULT NULL, expires_at timestamptz DEFAULT NULL, idempotency_key text DEFAULT NULL,
  tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL, group_key text DEFAULT NULL
) RETURNS tickwright.unique_answer LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  known tickwright.task_types;
  job tickwright.scheduled_tasks;
BEGIN
  SELECT y.* INTO known FROM tickwright.task_types y WHERE y.name = task_type;
  IF rule IS NOT NULL THEN
    rule := tickwright.unique_rule(rule);
  ELSIF known.uniqueness IS NULL THEN
    RAISE EXCEPTION 'job refused: unique: task type % has no rule', task_type
      USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_unique', HINT = 'Give a rule, such as {"by": ["customer_id"], "period": "15m"}.';
  END IF;
  rule := coalesce(rule, known.uniqueness);
  job.task_type := task_type;
  job.payload := coalesce(payload, '{}');
  job.execute_at := coalesce(execute_at, now());
  job.priority := coalesce(priority, 0);
  job.max_attempts := coalesce(max_attempts, known.max_attempts, 3);
  job.timeout_ms := timeout_ms;
  job.expires_at := expires_at;
  job.idempotency_key := idempotency_key;
  job.tags := tags;
  job.metadata := metadata;
  job.group_key := group_key;
  job.uniqueness := rule || jsonb_build_object('digest', encode(tickwright.unique_digest(task_type, job.payload, rule -> 'by'), 'hex'));
  RETURN tickwright.put_unique(job, true);
END $$;
COMMENT ON FUNCTION tickwright.schedule_unique IS
  'Schedule a unique job by plain SQL: by its own rule, {"by": ["customer_id"], "period": "15m", "over": ["pending"], "on_conflict": ["time"]}, or by that of its '
  'task type. outcome is inserted, existing or replaced; no row values where its idempotency key belongs to a job.';
REVOKE EXECUTE ON FUNCTION tickwright.schedule_unique FROM PUBLIC;

------------------------------------------------------------------------------------------------ retries of dead letters
CREATE FUNCTION tickwright.hold_unique(wanted_by bigint, uniqueness jsonb) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  holder tickwright.job_uniques;
BEGIN
  LOOP
    SELECT * INTO holder FROM tickwright.job_uniques u WHERE u.digest = decode(uniqueness ->> 'digest', 'hex');
    IF FOUND AND holder.job_id <> wanted_by AND tickwright.unique_state(holder) IS NOT NULL THEN
      RETURN false;
    END IF;
    INSERT INTO tickwright.job_uniques AS u (digest, job_id, until)
    VALUES (decode(uniqueness ->> 'digest', 'hex'), wanted_by, clock_timestamp() + make_interval(secs => CAST(uniqueness ->> 'period_s' AS float8)))
        ON CONFLICT (digest) DO UPDATE SET job_id = excluded.job_id, held_from = excluded.held_from, until = excluded.until
     WHERE u.job_id = holder.job_id;
    EXIT WHEN FOUND;
  END LOOP;
  DELETE FROM tickwright.job_unique_ends e WHERE e.job_id = wanted_by;
  RETURN true;
END $$;
COMMENT ON FUNCTION tickwright.hold_unique IS 'Let a dead letter that is retried hold its arguments again, for a new period; false where another job holds them.';

------------------------------------------------------------------------------------------------ ends
CREATE FUNCTION tickwright.end_unique_job(job tickwright.scheduled_tasks) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  held record;
  ended text := job.status;
BEGIN
  IF NOT job.uniqueness -> 'over' ?| '{completed,failed,cancelled}' OR (job.owner IS NULL AND pg_trigger_depth() = 1) THEN
    RETURN;                                                        -- no ended state holds, or its user deleted a job that waits
  END IF;
  SELECT coalesce(u.until, clock_timestamp() + interval '7 days') AS until INTO held FROM tickwright.job_uniques u
   WHERE u.digest = decode(job.uniqueness ->> 'digest', 'hex') AND u.job_id = job.id AND (u.until IS NULL OR u.until > clock_timestamp());
  IF NOT FOUND THEN
    RETURN;
  END IF;
  IF ended NOT IN ('completed', 'failed', 'cancelled') THEN        -- its statement has moved it; of a type without history nothing is left
    ended := coalesce((SELECT t.status FROM tickwright.scheduled_tasks t WHERE t.id = job.id), 'completed');
  END IF;
  IF job.uniqueness -> 'over' ? ended THEN
    INSERT INTO tickwright.job_unique_ends AS e (job_id, status, until) VALUES (job.id, ended, held.until)
        ON CONFLICT (job_id) DO UPDATE SET status = excluded.status, until = excluded.until;
  END IF;
END $$;
COMMENT ON FUNCTION tickwright.end_unique_job IS
  'Record the end of a unique job whose arguments it still holds: until its period has passed, or for seven days, as long as an idempotency key.';

CREATE OR REPLACE FUNCTION tickwright.end_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF OLD.awaited THEN
    PERFORM pg_notify('tickwright_results', OLD.id::text);
  END IF;
  IF OLD.uniqueness IS NOT NULL THEN
    PERFORM tickwright.end_unique_job(OLD);
  END IF;
  IF OLD.idempotency_key IS NULL THEN
    RETURN NULL;
  END IF;
  IF OLD.owner IS NULL AND pg_trigger_depth() = 1 THEN            -- its user deleted a job that waits
    DELETE FROM tickwright.job_keys WHERE key = OLD.idempotency_key AND job_id = OLD.id;
  ELSIF NOT EXISTS (SELECT FROM tickwright.job_keys
                     WHERE key = OLD.idempotency_key
                       AND (job_id <> OLD.id OR created_at >= clock_timestamp() - interval '1 hour')) THEN
    INSERT INTO tickwright.job_keys AS k (key, job_id, digest, created_at)
    VALUES (OLD.idempotency_key, OLD.id, OLD.request_digest, clock_timestamp())
    ON CONFLICT (key) DO UPDATE SET created_at = excluded.created_at WHERE k.job_id = excluded.job_id;
  END IF;
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER scheduled_tasks_deleted AFTER DELETE ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (OLD.idempotency_key IS NOT NULL OR OLD.awaited OR OLD.uniqueness IS NOT NULL) EXECUTE FUNCTION tickwright.end_job();

------------------------------------------------------------------------------------------------ roles that use plain SQL only
DO $$ BEGIN
  EXECUTE format('CREATE OR REPLACE FUNCTION tickwright.app_role_statements(wanted text) RETURNS SETOF text LANGUAGE sql STABLE AS %L',
                 (SELECT rtrim(p.prosrc, E' ;\n') FROM pg_proc p WHERE p.oid = 'tickwright.app_role_statements(text)'::regprocedure)
                 || E'\n  UNION ALL\n  SELECT format(''GRANT EXECUTE ON FUNCTION tickwright.schedule_unique TO %I'', wanted)\n');
  EXECUTE format('CREATE OR REPLACE VIEW tickwright.app_rights AS '
                 'SELECT r.relation, r.privilege, '
                 '       CASE WHEN r.relation = ''task_types'' THEN r.columns || ''uniqueness''::text ELSE r.columns END AS columns FROM (%s) AS r',
                 rtrim(pg_get_viewdef('tickwright.app_rights'::regclass), ';'));
END $$;
