-- Polls of trackers, tasks of entities and chunks of batches for workers in other languages: a consumer hands a call over, a remote worker makes it. See
-- docs/adr/0045. Forward on a live system: it only creates, and adds a column without a default. A process of the release before hands nothing over. When it
-- declares a session lost, that session's calls end at their deadlines instead of at once.
CREATE UNLOGGED TABLE tickwright.remote_calls (
  id          bigint      PRIMARY KEY DEFAULT nextval('tickwright.scheduled_tasks_id_seq'),
  kind        text        COLLATE "C" NOT NULL CHECK (kind IN ('poll', 'task', 'chunk')),
  pool        text        COLLATE "C" NOT NULL,
  name        text        COLLATE "C" NOT NULL,
  caller      bigint      NOT NULL,
  ref         bigint      NOT NULL,
  payload     text        NOT NULL,
  timeout_ms  integer     NOT NULL CHECK (timeout_ms > 0),
  patience_ms integer     NOT NULL CHECK (patience_ms > 0),
  owner       bigint,
  fence       bigint      NOT NULL DEFAULT 0,
  began_at    timestamptz,
  deadline_at timestamptz NOT NULL,
  progress    text,
  outcome     text        COLLATE "C",
  answer      text,
  CONSTRAINT remote_calls_owner CHECK (owner IS NULL OR outcome IS NULL)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX remote_calls_waiting ON tickwright.remote_calls (pool, kind, name, id) WHERE owner IS NULL AND outcome IS NULL;
CREATE INDEX remote_calls_owner ON tickwright.remote_calls (owner) WHERE owner IS NOT NULL;
CREATE INDEX remote_calls_caller ON tickwright.remote_calls (caller);
COMMENT ON TABLE tickwright.remote_calls IS
  'Calls that consumers have handed over to remote workers. What they are about is owned by the consumer elsewhere, so a row that is lost with a crash of the server is handed over again.';
COMMENT ON COLUMN tickwright.remote_calls.id IS 'From the sequence of jobs: the ids of all work of remote workers differ.';
COMMENT ON COLUMN tickwright.remote_calls.name IS 'Of the partner, module or batch.';
COMMENT ON COLUMN tickwright.remote_calls.caller IS 'The session of the consumer that waits for the answer.';
COMMENT ON COLUMN tickwright.remote_calls.ref IS 'The consumer''s number of the call.';
COMMENT ON COLUMN tickwright.remote_calls.patience_ms IS 'How long it waits for a worker.';
COMMENT ON COLUMN tickwright.remote_calls.owner IS 'The session of the remote worker that makes it.';
COMMENT ON COLUMN tickwright.remote_calls.fence IS 'Rises with each claim; the answer carries it.';
COMMENT ON COLUMN tickwright.remote_calls.deadline_at IS 'It ends then: without a worker after patience_ms, with one after timeout_ms and a little more.';
COMMENT ON COLUMN tickwright.remote_calls.outcome IS 'How it ended, until the consumer takes the answer.';

ALTER TABLE tickwright.modules ADD COLUMN target text CHECK (target ~ '^remote:[A-Za-z_][A-Za-z0-9_.-]{0,254}$');
COMMENT ON COLUMN tickwright.modules.target IS 'remote:POOL: remote workers run its tasks; NULL: the program''s function.';
