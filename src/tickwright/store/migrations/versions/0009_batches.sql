-- Batches and campaigns: executions in chunks, one action per client. See ADR-0018. Forward on a live system: it only creates.

------------------------------------------------------------------------------------------------ definitions
CREATE TABLE tickwright.batches (
  id                    bigint       GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name                  varchar(100) COLLATE "C" NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]*$'),
  kind                  text         NOT NULL CHECK (kind IN ('campaign', 'program')),
  type                  text         NOT NULL CHECK (type IN ('MANUAL', 'AUTOMATIC')),
  status                text         NOT NULL DEFAULT 'IDLE' CHECK (status IN ('SCHEDULED', 'IDLE')),
  version               integer      NOT NULL DEFAULT 1 CHECK (version >= 1),
  date_time_execution   timestamptz,
  time_zone             text         NOT NULL DEFAULT 'UTC',
  restartable           boolean      NOT NULL DEFAULT false,
  restartable_unit      integer      CHECK (restartable_unit BETWEEN 1 AND 1000000),
  restartable_unit_type text         CHECK (restartable_unit_type IN ('MINUTES', 'HOURS', 'DAYS', 'WEEKS', 'MONTHS')),
  cron                  text,
  overlap               text         NOT NULL DEFAULT 'skip' CHECK (overlap IN ('skip', 'queue', 'replace')),
  misfire               text         NOT NULL DEFAULT 'one' CHECK (misfire IN ('one', 'all', 'none')),
  misfire_max           integer      NOT NULL DEFAULT 100 CHECK (misfire_max BETWEEN 1 AND 1000),
  misfire_grace         interval     NOT NULL DEFAULT '1 minute' CHECK (misfire_grace BETWEEN '0' AND '7 days'),
  product_codes         text[]       NOT NULL DEFAULT '{}',
  definition            jsonb        NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(definition) = 'object'),
  served_by             text         GENERATED ALWAYS AS (CASE WHEN kind = 'program' THEN 'program:' || name
                                       ELSE coalesce('source:' || (definition #>> '{audience,source}'), 'objects') END) STORED,
  next_slot_at          timestamptz,
  set_by                text         NOT NULL DEFAULT 'operator' CHECK (set_by IN ('app', 'operator')),
  created_at            timestamptz  NOT NULL DEFAULT now(),
  updated_at            timestamptz  NOT NULL DEFAULT now(),
  CHECK (next_slot_at IS NULL OR status = 'SCHEDULED'),
  CHECK (cron IS NULL OR NOT restartable),
  CHECK (NOT restartable OR (date_time_execution IS NOT NULL AND restartable_unit IS NOT NULL AND restartable_unit_type IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX batches_due ON tickwright.batches (next_slot_at) WHERE next_slot_at IS NOT NULL;
COMMENT ON TABLE tickwright.batches IS 'What is executed, when, and how; a campaign is one kind. Edits make a new version; batch_versions has all of them.';
COMMENT ON COLUMN tickwright.batches.date_time_execution IS 'The first run. The ones behind it are counted from here by the calendar of time_zone.';
COMMENT ON COLUMN tickwright.batches.served_by IS 'What a process must have to work on it: a source, the object store, or the program that declares it.';
COMMENT ON COLUMN tickwright.batches.next_slot_at IS 'The next occurrence that the producer has not dealt with; NULL when there is none.';
COMMENT ON COLUMN tickwright.batches.definition IS 'What belongs to its kind: audience, expression, action; chunk_rows, rate, release.';
COMMENT ON COLUMN tickwright.batches.misfire IS 'What becomes of slots found later than misfire_grace: the newest of them, all up to misfire_max, or none.';

CREATE TABLE tickwright.batch_versions (
  batch_id   bigint      NOT NULL REFERENCES tickwright.batches ON DELETE CASCADE,
  version    integer     NOT NULL,
  terms      jsonb       NOT NULL,
  made_by    text        NOT NULL,
  made_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (batch_id, version)
);
COMMENT ON TABLE tickwright.batch_versions IS 'Every version as it was written, schedule included. Never changed.';

------------------------------------------------------------------------------------------------ executions
CREATE TABLE tickwright.executions (
  id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  batch_id        bigint      NOT NULL REFERENCES tickwright.batches ON DELETE CASCADE,
  slot_at         timestamptz NOT NULL,
  started_by      text        NOT NULL DEFAULT 'schedule',
  status          text        NOT NULL DEFAULT 'NEW'
                  CHECK (status IN ('NEW', 'IN_PROGRESS', 'FINISHED', 'EXCEPTION_OCCURRED', 'STOPPED', 'DISABLED')),
  version         integer,
  snapshot        jsonb,
  served_by       text,
  created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  started_at      timestamptz,
  planned_at      timestamptz,
  finished_at     timestamptz,
  paused_at       timestamptz,
  due_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  owner           bigint,
  fence           bigint      NOT NULL DEFAULT 0,
  tries           integer     NOT NULL DEFAULT 0,
  lost            integer     NOT NULL DEFAULT 0,
  chunks          integer     NOT NULL DEFAULT 0,
  chunks_done     integer     NOT NULL DEFAULT 0,
  chunks_released integer     NOT NULL DEFAULT 0,
  members         bigint      NOT NULL DEFAULT 0,
  seen            bigint      NOT NULL DEFAULT 0,
  selected        bigint      NOT NULL DEFAULT 0,
  missing         bigint      NOT NULL DEFAULT 0,
  skipped         bigint      NOT NULL DEFAULT 0,
  actions         bigint      NOT NULL DEFAULT 0,
  released        bigint      NOT NULL DEFAULT 0,
  next_chunk_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  next_release_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  error_code      text,
  error_message   text,
  error_trace     text,
  ended_why       text,
  UNIQUE (batch_id, slot_at)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX executions_one_at_work ON tickwright.executions (batch_id) WHERE status = 'IN_PROGRESS';
CREATE INDEX executions_open ON tickwright.executions (batch_id, slot_at) WHERE status IN ('NEW', 'IN_PROGRESS');
CREATE INDEX executions_to_begin ON tickwright.executions (due_at)
  WHERE owner IS NULL AND (status = 'NEW' OR (status = 'IN_PROGRESS' AND planned_at IS NULL));
CREATE INDEX executions_at_work ON tickwright.executions (id) WHERE status = 'IN_PROGRESS';
CREATE INDEX executions_to_release ON tickwright.executions (next_release_at) WHERE status IN ('IN_PROGRESS', 'FINISHED') AND chunks_released < chunks;
CREATE INDEX executions_owner ON tickwright.executions (owner) WHERE owner IS NOT NULL;
CREATE INDEX executions_ended ON tickwright.executions (finished_at) WHERE finished_at IS NOT NULL;
COMMENT ON TABLE tickwright.executions IS 'One row per occurrence of a batch. NEW, IN_PROGRESS, then FINISHED, EXCEPTION_OCCURRED, STOPPED or DISABLED.';
COMMENT ON COLUMN tickwright.executions.slot_at IS 'The occurrence that it is for; of one started by hand, the moment of that.';
COMMENT ON COLUMN tickwright.executions.snapshot IS 'The version as it was when it began: edits behind that do not touch it.';
COMMENT ON COLUMN tickwright.executions.owner IS 'Token of the session that cuts it into chunks; NULL when nobody does.';
COMMENT ON COLUMN tickwright.executions.due_at IS 'Not taken before; moves on when the source was away.';
COMMENT ON COLUMN tickwright.executions.members IS 'Counted when it was cut into chunks; seen is how many of them were read.';
COMMENT ON COLUMN tickwright.executions.missing IS 'Not selected because a field that decides is NULL.';
COMMENT ON COLUMN tickwright.executions.skipped IS 'Could not be judged; examples are in execution_chunks.problems.';

CREATE TABLE tickwright.execution_chunks (
  execution_id bigint      NOT NULL REFERENCES tickwright.executions ON DELETE CASCADE,
  number       integer     NOT NULL,
  value        jsonb       NOT NULL,
  members      bigint      NOT NULL DEFAULT 0,
  state        text        NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'working', 'done', 'released')),
  owner        bigint,
  fence        bigint      NOT NULL DEFAULT 0,
  tries        integer     NOT NULL DEFAULT 0,
  lost         integer     NOT NULL DEFAULT 0,
  due_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  began_at     timestamptz,
  done_at      timestamptz,
  seen         bigint      NOT NULL DEFAULT 0,
  selected     bigint      NOT NULL DEFAULT 0,
  missing      bigint      NOT NULL DEFAULT 0,
  skipped      bigint      NOT NULL DEFAULT 0,
  actions      bigint      NOT NULL DEFAULT 0,
  problems     jsonb,
  PRIMARY KEY (execution_id, number)
) WITH (fillfactor = 50);
CREATE INDEX execution_chunks_waiting ON tickwright.execution_chunks (execution_id, number) WHERE state = 'waiting';
CREATE INDEX execution_chunks_done ON tickwright.execution_chunks (execution_id, number) WHERE state = 'done';
CREATE INDEX execution_chunks_owner ON tickwright.execution_chunks (owner) WHERE owner IS NOT NULL;
CREATE INDEX execution_chunks_problems ON tickwright.execution_chunks (execution_id, number) WHERE problems IS NOT NULL;
COMMENT ON TABLE tickwright.execution_chunks IS 'The checkpoint of an execution: what is done is never done again.';
COMMENT ON COLUMN tickwright.execution_chunks.value IS 'Which members: {"after": …, "until": …} of an audience, or what a program''s plan gave.';
COMMENT ON COLUMN tickwright.execution_chunks.tries IS 'Attempts that failed; lost counts the processes that went away with it.';
COMMENT ON COLUMN tickwright.execution_chunks.fence IS 'Rises with each claim; one claim beyond the first is one redone chunk.';

CREATE TABLE tickwright.execution_actions (
  execution_id bigint  NOT NULL,
  client_id    text    COLLATE "C" NOT NULL CHECK (octet_length(client_id) BETWEEN 1 AND 1000),
  chunk        integer NOT NULL,
  client       jsonb   NOT NULL,
  PRIMARY KEY (execution_id, client_id)
);
CREATE INDEX execution_actions_chunk ON tickwright.execution_actions (execution_id, chunk);
COMMENT ON TABLE tickwright.execution_actions IS 'Exactly one per execution and selected client, written with its chunk; released when its chunk is.';

CREATE TABLE tickwright.execution_skips (
  batch_id bigint      NOT NULL REFERENCES tickwright.batches ON DELETE CASCADE,
  slot_at  timestamptz NOT NULL,
  reason   text        NOT NULL CHECK (reason IN ('overlap', 'misfire')),
  slots    integer     NOT NULL DEFAULT 1,
  until_at timestamptz NOT NULL,
  noted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (batch_id, slot_at)
);
COMMENT ON TABLE tickwright.execution_skips IS 'Why an occurrence has no execution; a run of missed ones is one row, from slot_at to until_at.';

CREATE VIEW tickwright.campaigns AS
SELECT id, name, type, status, version, date_time_execution, time_zone, restartable, restartable_unit, restartable_unit_type, cron, overlap, misfire,
       product_codes, definition -> 'audience' AS audience, definition ->> 'expression' AS expression, definition -> 'action' AS action,
       next_slot_at, created_at, updated_at
  FROM tickwright.batches WHERE kind = 'campaign';
CREATE VIEW tickwright.campaign_executions AS
SELECT e.id, b.name AS campaign, e.slot_at, e.status, e.version, e.created_at, e.started_at, e.finished_at, e.paused_at, e.chunks, e.chunks_done, e.members, e.seen,
       e.selected, e.missing, e.skipped, e.actions, e.released, e.error_code, e.error_message, e.error_trace
  FROM tickwright.executions e JOIN tickwright.batches b ON b.id = e.batch_id WHERE b.kind = 'campaign';

CREATE FUNCTION tickwright.ring_batches() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('tickwright_batches', '');
  RETURN NULL;
END $$;
CREATE TRIGGER ring_batches AFTER INSERT OR UPDATE OF status, next_slot_at ON tickwright.batches
  FOR EACH STATEMENT EXECUTE FUNCTION tickwright.ring_batches();
CREATE TRIGGER ring_batches AFTER INSERT OR UPDATE OF status, paused_at ON tickwright.executions
  FOR EACH STATEMENT EXECUTE FUNCTION tickwright.ring_batches();
