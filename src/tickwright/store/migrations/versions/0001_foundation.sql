-- The foundation: one-shot jobs, leases, workers, the outbox, keys, alerts and the audit trail.
-- Forward on a live system: it only creates.

CREATE SEQUENCE tickwright.fence_seq;
COMMENT ON SEQUENCE tickwright.fence_seq IS 'Fencing tokens of worker sessions; a token is never used twice.';

------------------------------------------------------------------------------------------------ task types
CREATE TABLE tickwright.task_types (
  name              varchar(50) COLLATE "C" PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]*$'),
  target            text        NOT NULL CHECK (length(target) BETWEEN 1 AND 2048),
  timeout_ms        integer     NOT NULL DEFAULT 30000    CHECK (timeout_ms BETWEEN 1 AND 86400000),
  max_attempts      integer     NOT NULL DEFAULT 3        CHECK (max_attempts BETWEEN 1 AND 1000),
  retry_base_ms     integer     NOT NULL DEFAULT 1000     CHECK (retry_base_ms BETWEEN 0 AND 86400000),
  retry_factor      real        NOT NULL DEFAULT 2        CHECK (retry_factor BETWEEN 1 AND 10),
  retry_cap_ms      integer     NOT NULL DEFAULT 3600000  CHECK (retry_cap_ms BETWEEN 0 AND 604800000),
  final_statuses    integer[]   NOT NULL DEFAULT '{}',
  concurrency       integer     CHECK (concurrency BETWEEN 1 AND 100000),
  rate_per_s        double precision CHECK (rate_per_s > 0 AND rate_per_s <= 100000),
  keep_history      boolean     NOT NULL DEFAULT true,
  paused_at         timestamptz,
  gone_at           timestamptz,
  version           bigint      NOT NULL DEFAULT 1,
  created_at        timestamptz NOT NULL DEFAULT now(),
  updated_at        timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tickwright.task_types IS 'What a task type does: its target, limits and retry policy. A type that is not here waits.';
COMMENT ON COLUMN tickwright.task_types.gone_at IS 'The endpoint answered 410; its jobs wait until the type is enabled again.';

CREATE TABLE tickwright.task_type_secrets (
  id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  task_type  varchar(50) COLLATE "C" NOT NULL REFERENCES tickwright.task_types ON DELETE CASCADE,
  secret     text        NOT NULL CHECK (secret LIKE 'whsec\_%'),
  created_at timestamptz NOT NULL DEFAULT now(),
  retires_at timestamptz
);
CREATE INDEX task_type_secrets_type ON tickwright.task_type_secrets (task_type, id);
COMMENT ON TABLE tickwright.task_type_secrets IS 'Standard Webhooks secrets per endpoint; several while one is being rotated.';

------------------------------------------------------------------------------------------------ jobs
CREATE TABLE tickwright.scheduled_tasks (
  id                  bigint       GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  execute_at          timestamptz  NOT NULL,
  task_type           varchar(50)  COLLATE "C" NOT NULL,  -- compared byte by byte: it leads the hot index
  payload             jsonb        NOT NULL DEFAULT '{}',
  status              varchar(20)  NOT NULL DEFAULT 'pending',
  attempts            integer      NOT NULL DEFAULT 0,
  max_attempts        integer      NOT NULL DEFAULT 3,
  error_message       text,
  created_at          timestamptz  NOT NULL DEFAULT now(),
  updated_at          timestamptz  NOT NULL DEFAULT now(),
  completed_at        timestamptz,
  priority            smallint     NOT NULL DEFAULT 0,
  idempotency_key     varchar(255) COLLATE "C",
  timeout_ms          integer,
  expires_at          timestamptz,
  result              jsonb,
  progress            jsonb,
  retry_at            timestamptz,
  started_at          timestamptz,
  cancel_requested_at timestamptz,
  fence               bigint       NOT NULL DEFAULT 0,
  owner               bigint,
  request_digest      bytea,
  CONSTRAINT scheduled_tasks_status CHECK (status IN ('pending', 'processing', 'completed', 'failed', 'cancelled'))
) WITH (
  fillfactor = 50,                        -- room for the claim on the same page: it is then a HOT update
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_insert_scale_factor = 0.2,
  autovacuum_analyze_scale_factor = 0.1,
  autovacuum_vacuum_cost_delay = 1
);
COMMENT ON TABLE tickwright.scheduled_tasks IS
  'One row per one-shot job. Public contract: INSERT (execute_at, task_type, payload) schedules a job; '
  'finished jobs are in tables that inherit from this one, so SELECT sees every state under one name.';
COMMENT ON COLUMN tickwright.scheduled_tasks.execute_at IS 'What the user asked for; a retry never rewrites it.';
COMMENT ON COLUMN tickwright.scheduled_tasks.retry_at IS 'When the next attempt is due; empty before the first failure.';
COMMENT ON COLUMN tickwright.scheduled_tasks.owner IS 'Fencing token of the worker session that holds the job; empty when nobody does.';
COMMENT ON COLUMN tickwright.scheduled_tasks.fence IS 'Rises by one with every claim of this job.';

-- The only index beside the keys. What a claim changes is in no index and no predicate.
CREATE INDEX scheduled_tasks_due ON tickwright.scheduled_tasks (task_type, priority, (coalesce(retry_at, execute_at)));
CREATE UNIQUE INDEX scheduled_tasks_key ON tickwright.scheduled_tasks (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE tickwright.job_keys (
  key        varchar(255) COLLATE "C" PRIMARY KEY,
  job_id     bigint       NOT NULL,
  digest     bytea,
  created_at timestamptz  NOT NULL DEFAULT now()
);
CREATE INDEX job_keys_age ON tickwright.job_keys (created_at);
COMMENT ON TABLE tickwright.job_keys IS 'Idempotency keys outlive their jobs: same key, same job, also after it has run.';

CREATE TABLE tickwright.scheduled_tasks_dead (PRIMARY KEY (id)) INHERITS (tickwright.scheduled_tasks);
CREATE INDEX scheduled_tasks_dead_at ON tickwright.scheduled_tasks_dead (completed_at);
COMMENT ON TABLE tickwright.scheduled_tasks_dead IS 'Jobs whose last attempt failed; kept apart so that they can be found and requeued.';

------------------------------------------------------------------------------------------------ workers and leases
CREATE TABLE tickwright.workers (
  id          bigint      PRIMARY KEY,
  name        text        NOT NULL,
  roles       text[]      NOT NULL,
  version     text        NOT NULL,
  started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  lease_until timestamptz NOT NULL,
  drain_requested_at timestamptz,
  lost_at     timestamptz,
  facts       jsonb       NOT NULL DEFAULT '{}'
) WITH (fillfactor = 20);
COMMENT ON TABLE tickwright.workers IS 'One row per worker session; its id is the fencing token of everything that it claims.';

CREATE TABLE tickwright.type_grants (
  task_type varchar(50) COLLATE "C" NOT NULL,
  worker    bigint      NOT NULL REFERENCES tickwright.workers ON DELETE CASCADE,
  granted   integer     NOT NULL CHECK (granted >= 0),
  PRIMARY KEY (task_type, worker)
) WITH (fillfactor = 50);
COMMENT ON TABLE tickwright.type_grants IS 'How much of a type''s concurrency each worker may use; the sum never exceeds it.';

CREATE TABLE tickwright.type_rates (
  task_type    varchar(50) COLLATE "C" PRIMARY KEY,
  next_free_at timestamptz NOT NULL
) WITH (fillfactor = 20);
COMMENT ON TABLE tickwright.type_rates IS 'The first instant that a rate-limited type has not given away yet (GCRA).';

CREATE TABLE tickwright.job_config (
  job_name          text        PRIMARY KEY,
  slice_start       timestamptz,
  slice_end         timestamptz,
  last_started_at   timestamptz,
  last_completed_at timestamptz,
  running           boolean     NOT NULL DEFAULT false,
  version           bigint      NOT NULL DEFAULT 0,
  owner             text,
  lease_until       timestamptz,
  CONSTRAINT job_config_slice CHECK (slice_start < slice_end)
) WITH (fillfactor = 20);
COMMENT ON COLUMN tickwright.job_config.version IS 'The fence: rises with every change of owner; every write of the owner carries it.';

------------------------------------------------------------------------------------------------ outbox
CREATE TABLE tickwright.outbox (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  destination text        NOT NULL CHECK (length(destination) BETWEEN 1 AND 2048),
  key         text        CHECK (length(key) <= 1024),
  payload     jsonb       NOT NULL CHECK (pg_column_size(payload) <= 1048576),
  headers     jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
  created_at  timestamptz NOT NULL DEFAULT now(),
  attempts    integer     NOT NULL DEFAULT 0,
  next_at     timestamptz NOT NULL DEFAULT '-infinity',
  fence       bigint      NOT NULL DEFAULT 0,
  error_message text
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
COMMENT ON TABLE tickwright.outbox IS
  'Transactional outbox: INSERT (destination, key, payload) in your own transaction; the relay publishes it after the commit.';

CREATE TABLE tickwright.outbox_dead (
  id          bigint      PRIMARY KEY,
  destination text        NOT NULL,
  key         text,
  payload     jsonb       NOT NULL,
  headers     jsonb       NOT NULL,
  created_at  timestamptz NOT NULL,
  attempts    integer     NOT NULL,
  error_message text,
  died_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

------------------------------------------------------------------------------------------------ access, alerts, audit
CREATE TABLE tickwright.api_keys (
  id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name       text        NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
  role       text        NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  prefix     text        NOT NULL,
  hash       bytea       NOT NULL UNIQUE,
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz,
  revoked_at timestamptz
);
COMMENT ON COLUMN tickwright.api_keys.hash IS 'SHA-256 of a key with 256 random bits; the key itself is shown once and kept nowhere.';

CREATE TABLE tickwright.alerts (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  rule        text        NOT NULL,
  subject     text        NOT NULL,
  severity    text        NOT NULL CHECK (severity IN ('info', 'warning', 'critical')),
  summary     text        NOT NULL,
  state       text        NOT NULL CHECK (state IN ('firing', 'resolved')),
  fired_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  resolved_at timestamptz,
  facts       jsonb       NOT NULL DEFAULT '{}'
);
CREATE UNIQUE INDEX alerts_firing ON tickwright.alerts (rule, subject) WHERE state = 'firing';

CREATE TABLE tickwright.audit (
  id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  actor      text        NOT NULL,
  action     text        NOT NULL,
  subject    text        NOT NULL,
  before     jsonb,
  after      jsonb
);

CREATE TABLE tickwright.installation (
  one        boolean     PRIMARY KEY DEFAULT true CHECK (one),
  id         uuid        NOT NULL DEFAULT gen_random_uuid(),
  created_at timestamptz NOT NULL DEFAULT now()
);
INSERT INTO tickwright.installation DEFAULT VALUES;

------------------------------------------------------------------------------------------------ triggers
-- The doorbell. A silent insert proves that somebody is awake: it got the shared lock, so no worker sleeps with the
-- exclusive one, and a worker that wants to sleep cannot take it before this transaction has ended. See ADR-0004.
CREATE FUNCTION tickwright.ring_doorbell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM new_rows WHERE coalesce(retry_at, execute_at) <= clock_timestamp() + interval '1.5 seconds')
     AND NOT pg_try_advisory_xact_lock_shared(7313, 1) THEN
    PERFORM pg_notify('tickwright_jobs', '');
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER scheduled_tasks_inserted AFTER INSERT ON tickwright.scheduled_tasks
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION tickwright.ring_doorbell();

CREATE FUNCTION tickwright.ring_doorbell_for_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT pg_try_advisory_xact_lock_shared(7313, 1) THEN
    PERFORM pg_notify('tickwright_jobs', '');
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER scheduled_tasks_moved AFTER UPDATE OF execute_at ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (NEW.execute_at <= clock_timestamp() + interval '1.5 seconds')
  EXECUTE FUNCTION tickwright.ring_doorbell_for_row();

-- What a user may write. A CHECK would be evaluated again by every claim and every finished row, a quarter of their cost;
-- these look only when somebody inserts or changes the columns in question, and name what they refuse in the same way.
CREATE FUNCTION tickwright.refuse_job(job tickwright.scheduled_tasks) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  rule text;
  advice text;
BEGIN
  SELECT r.rule, r.advice INTO rule, advice FROM (VALUES
    ('task_type',    job.task_type !~ '^[A-Za-z0-9][A-Za-z0-9_.:-]*$', 'task_type: letters, digits, and _ . : - behind the first'),
    ('execute_at',   job.execute_at < '1970-01-01Z' OR job.execute_at >= '9999-01-01Z', 'execute_at: between 1970 and 9998'),
    ('max_attempts', job.max_attempts NOT BETWEEN 1 AND 1000, 'max_attempts: 1 to 1000'),
    ('priority',     job.priority NOT BETWEEN -100 AND 100, 'priority: -100 to 100, higher first'),
    ('timeout',      job.timeout_ms NOT BETWEEN 1 AND 86400000, 'timeout_ms: 1 to 86400000'),
    ('payload',      pg_column_size(job.payload) > 1048576, 'payload: at most 1 MiB; keep large things elsewhere'),
    ('new',          true, 'status, attempts, fence and owner are Tickwright''s; leave them out')
  ) AS r (rule, broken, advice) WHERE r.broken LIMIT 1;
  RAISE EXCEPTION 'job refused: %', advice
    USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_' || rule, HINT = advice;
END $$;

CREATE FUNCTION tickwright.refuse_new_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM tickwright.refuse_job(NEW);
  RETURN NULL;
END $$;
CREATE TRIGGER scheduled_tasks_new BEFORE INSERT ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (NOT (NEW.status = 'pending' AND NEW.owner IS NULL AND NEW.attempts = 0 AND NEW.fence = 0
             AND NEW.task_type ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]*$'
             AND NEW.execute_at >= '1970-01-01Z' AND NEW.execute_at < '9999-01-01Z'
             AND NEW.max_attempts BETWEEN 1 AND 1000 AND NEW.priority BETWEEN -100 AND 100
             AND coalesce(NEW.timeout_ms, 1) BETWEEN 1 AND 86400000 AND pg_column_size(NEW.payload) <= 1048576))
  EXECUTE FUNCTION tickwright.refuse_new_job();
CREATE TRIGGER scheduled_tasks_edited
  BEFORE UPDATE OF task_type, execute_at, max_attempts, priority, timeout_ms, payload ON tickwright.scheduled_tasks
  FOR EACH ROW
  WHEN (NOT (NEW.task_type ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]*$'
             AND NEW.execute_at >= '1970-01-01Z' AND NEW.execute_at < '9999-01-01Z'
             AND NEW.max_attempts BETWEEN 1 AND 1000 AND NEW.priority BETWEEN -100 AND 100
             AND coalesce(NEW.timeout_ms, 1) BETWEEN 1 AND 86400000 AND pg_column_size(NEW.payload) <= 1048576))
  EXECUTE FUNCTION tickwright.refuse_new_job();

-- Same key, same job, also after the job has run: a key that is taken by a finished job inserts nothing; one that
-- is taken by a live job is left to the unique index, so that ON CONFLICT DO NOTHING works as everywhere.
CREATE FUNCTION tickwright.claim_job_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks WHERE idempotency_key = NEW.idempotency_key) THEN
    RETURN NEW;
  END IF;
  INSERT INTO tickwright.job_keys (key, job_id, digest) VALUES (NEW.idempotency_key, NEW.id, NEW.request_digest)
  ON CONFLICT DO NOTHING;
  IF FOUND THEN
    RETURN NEW;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER scheduled_tasks_keyed BEFORE INSERT ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (NEW.idempotency_key IS NOT NULL) EXECUTE FUNCTION tickwright.claim_job_key();

-- A job that its user deletes before it ran takes its key along. Workers delete what they hold, and the triggers below
-- what is finished: those keys stay.
CREATE FUNCTION tickwright.free_job_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM tickwright.job_keys WHERE key = OLD.idempotency_key AND job_id = OLD.id;
  RETURN NULL;
END $$;
CREATE TRIGGER scheduled_tasks_deleted AFTER DELETE ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (OLD.idempotency_key IS NOT NULL AND OLD.owner IS NULL AND pg_trigger_depth() = 0)
  EXECUTE FUNCTION tickwright.free_job_key();

-- What a user may change by plain SQL, and what it means. Rows that a worker holds carry an owner.
CREATE FUNCTION tickwright.guard_held_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status = 'cancelled' THEN
    NEW.status := 'processing';            -- it runs: ask its worker to stop, and answer when it has
    NEW.cancel_requested_at := coalesce(OLD.cancel_requested_at, clock_timestamp());
    PERFORM pg_notify('tickwright_cancel', NEW.id::text);
  ELSE
    NEW.owner := NULL;                     -- somebody gives it back: the fence of its holder ends here
  END IF;
  NEW.updated_at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER scheduled_tasks_held BEFORE UPDATE OF status ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (OLD.status = 'processing' AND OLD.owner IS NOT NULL AND NEW.status <> 'processing')
  EXECUTE FUNCTION tickwright.guard_held_job();

CREATE FUNCTION tickwright.reset_retry() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF OLD.owner IS NOT NULL THEN
    RAISE EXCEPTION 'job % is running; it cannot be rescheduled', OLD.id
      USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_running', HINT = 'Cancel it or wait until it ends.';
  END IF;
  NEW.retry_at := NULL;                    -- a new time from the user outranks the back-off of an old attempt
  NEW.updated_at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER scheduled_tasks_rescheduled BEFORE UPDATE OF execute_at ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (OLD.execute_at IS DISTINCT FROM NEW.execute_at) EXECUTE FUNCTION tickwright.reset_retry();

-- Nothing finished stays in the live table.
CREATE FUNCTION tickwright.retire_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM ONLY tickwright.scheduled_tasks WHERE id = NEW.id;
  NEW.completed_at := coalesce(NEW.completed_at, clock_timestamp());
  NEW.updated_at := clock_timestamp();
  NEW.owner := NULL;
  PERFORM tickwright.keep_job(NEW);
  RETURN NULL;
END $$;
CREATE TRIGGER scheduled_tasks_finished AFTER UPDATE OF status ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (NEW.status IN ('completed', 'failed', 'cancelled')) EXECUTE FUNCTION tickwright.retire_job();

CREATE FUNCTION tickwright.tell_types_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('tickwright_types', '');
  RETURN NULL;
END $$;
CREATE TRIGGER task_types_changed AFTER INSERT OR UPDATE OR DELETE ON tickwright.task_types
  FOR EACH STATEMENT EXECUTE FUNCTION tickwright.tell_types_changed();
CREATE TRIGGER task_type_secrets_changed AFTER INSERT OR UPDATE OR DELETE ON tickwright.task_type_secrets
  FOR EACH STATEMENT EXECUTE FUNCTION tickwright.tell_types_changed();

------------------------------------------------------------------------------------------------ history
-- Finished rows live in one table per day of completion; the day is the database's, in UTC.
CREATE FUNCTION tickwright.history_table(at timestamptz) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT 'scheduled_tasks_' || to_char(at AT TIME ZONE 'UTC', 'YYYYMMDD')
$$;

CREATE FUNCTION tickwright.guard_finished_job() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.status IN ('pending', 'processing') THEN
    RAISE EXCEPTION 'job % is finished (%); it cannot go back to %', OLD.id, OLD.status, NEW.status
      USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_final',
            HINT = 'Use the retry action (POST /v1/jobs/{id}/retry or tickwright jobs retry).';
  END IF;
  RETURN NULL;                             -- a final state never changes: UPDATE 0
END $$;
CREATE TRIGGER scheduled_tasks_dead_final BEFORE UPDATE ON tickwright.scheduled_tasks_dead FOR EACH ROW
  EXECUTE FUNCTION tickwright.guard_finished_job();

CREATE FUNCTION tickwright.ensure_history(at timestamptz) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  name text := tickwright.history_table(at);
BEGIN
  IF to_regclass('tickwright.' || name) IS NULL THEN
    PERFORM pg_advisory_xact_lock(7313, 2);            -- two workers at midnight
    IF to_regclass('tickwright.' || name) IS NULL THEN
      EXECUTE format('CREATE TABLE tickwright.%I (PRIMARY KEY (id)) INHERITS (tickwright.scheduled_tasks)', name);
      EXECUTE format('CREATE TRIGGER final BEFORE UPDATE ON tickwright.%I FOR EACH ROW '
                     'EXECUTE FUNCTION tickwright.guard_finished_job()', name);
    END IF;
  END IF;
  RETURN name;
END $$;

CREATE FUNCTION tickwright.keep_job(job tickwright.scheduled_tasks) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF job.status = 'failed' THEN
    INSERT INTO tickwright.scheduled_tasks_dead SELECT (job).*;
  ELSE
    EXECUTE format('INSERT INTO tickwright.%I SELECT ($1).*', tickwright.ensure_history(clock_timestamp())) USING job;
  END IF;
END $$;

DO $$ BEGIN
  PERFORM tickwright.ensure_history(clock_timestamp());
  PERFORM tickwright.ensure_history(clock_timestamp() + interval '1 day');
END $$;

CREATE VIEW tickwright.dead_letters AS
  SELECT 'job'::text AS kind, id, task_type AS subject, error_message, attempts, created_at, completed_at AS died_at, payload
    FROM tickwright.scheduled_tasks_dead
  UNION ALL
  SELECT 'outbox', id, destination, error_message, attempts, created_at, died_at, payload
    FROM tickwright.outbox_dead;
COMMENT ON VIEW tickwright.dead_letters IS 'Everything that was given up and can be requeued.';
