-- Fan-out / gather reports: a record, its parts, and the step that is taken next. See ADR-0017. Forward on a live system: it only creates.

------------------------------------------------------------------------------------------------ what can be asked for
CREATE TABLE tickwright.report_types (
  name       text        COLLATE "C" PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,49}$'),
  definition jsonb       NOT NULL CHECK (jsonb_typeof(definition) = 'object' AND octet_length(definition::text) <= 262144),
  set_by     text        NOT NULL DEFAULT 'operator' CHECK (set_by IN ('app', 'operator')),
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tickwright.report_types IS 'What can be asked for: listeners, stages, the SQL that merges, and how long all that may take.';
COMMENT ON COLUMN tickwright.report_types.set_by IS 'What a program declares replaces what came from a program, nothing else.';

------------------------------------------------------------------------------------------------ what was asked for
CREATE TABLE tickwright.reports (
  id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  source          text        NOT NULL DEFAULT '' CHECK (length(source) <= 100),
  type            text        COLLATE "C" NOT NULL,
  query_key       text        COLLATE "C" NOT NULL CHECK (query_key ~ '^[0-9a-f]{64}$'),
  conditions      jsonb       NOT NULL DEFAULT '{}',
  department      text        CHECK (length(department) <= 100),
  requester       text        NOT NULL CHECK (length(requester) BETWEEN 1 AND 200),
  status          text        NOT NULL DEFAULT 'pending'
                  CHECK (status IN ('pending', 'querying', 'merging', 'finished', 'failed', 'cancelled')),
  plan            jsonb       NOT NULL,
  notify          text,
  stage           smallint    NOT NULL DEFAULT 1,
  feed            jsonb       NOT NULL DEFAULT '{}',
  epoch           integer     NOT NULL DEFAULT 1,
  restarts        integer     NOT NULL DEFAULT 0,
  tries           integer     NOT NULL DEFAULT 0,
  checks          integer     NOT NULL DEFAULT 0,
  fence           bigint      NOT NULL DEFAULT 0,
  owner           bigint,
  step_at         timestamptz,
  check_at        timestamptz,
  deadline_at     timestamptz NOT NULL,
  file_address    text,
  file_key        text,
  rows            bigint,
  bytes           bigint,
  checksum        text,
  manifest        jsonb,
  error_code      text,
  error           text,
  created_at      timestamptz NOT NULL DEFAULT now(),
  started_at      timestamptz,
  last_part_at    timestamptz,
  finished_at     timestamptz,
  file_expires_at timestamptz,
  cleared_at      timestamptz,
  CONSTRAINT reports_file CHECK ((status = 'finished') = (checksum IS NOT NULL)),
  CONSTRAINT reports_over CHECK ((status IN ('finished', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
  CONSTRAINT reports_step CHECK ((step_at IS NULL) = (status IN ('finished', 'failed', 'cancelled'))),
  CONSTRAINT reports_reason CHECK (status <> 'failed' OR error IS NOT NULL)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX reports_running ON tickwright.reports (requester, query_key) WHERE status IN ('pending', 'querying', 'merging');
CREATE INDEX reports_steps ON tickwright.reports (step_at) WHERE step_at IS NOT NULL;
CREATE INDEX reports_owner ON tickwright.reports (owner) WHERE owner IS NOT NULL;
CREATE INDEX reports_requester ON tickwright.reports (requester, id);
CREATE INDEX reports_answers ON tickwright.reports (requester, query_key, finished_at) WHERE status = 'finished';
CREATE INDEX reports_expiry ON tickwright.reports (file_expires_at) WHERE file_key IS NOT NULL;
CREATE INDEX reports_clearing ON tickwright.reports (finished_at) WHERE cleared_at IS NULL AND finished_at IS NOT NULL;
CREATE INDEX reports_old ON tickwright.reports (finished_at) WHERE file_key IS NULL AND cleared_at IS NOT NULL;
CREATE INDEX reports_finished ON tickwright.reports (finished_at) WHERE finished_at IS NOT NULL;
COMMENT ON TABLE tickwright.reports IS 'The record of each report, which decides: its status, its file, and who may take the next step.';
COMMENT ON COLUMN tickwright.reports.query_key IS 'SHA-256 of type, format and normalised conditions: one running report per requester and key.';
COMMENT ON COLUMN tickwright.reports.plan IS 'The definition of its type as it was when it was asked for; nothing changes under a running report.';
COMMENT ON COLUMN tickwright.reports.feed IS 'What the stages before this one gave to its queries.';
COMMENT ON COLUMN tickwright.reports.epoch IS 'Rises when parts were lost and all are asked again; a file has parts of one epoch.';
COMMENT ON COLUMN tickwright.reports.fence IS 'Rises with each claim of a step and with each cancel; every write of a step carries it.';
COMMENT ON COLUMN tickwright.reports.owner IS 'Token of the session whose step it is now; NULL for nobody''s.';
COMMENT ON COLUMN tickwright.reports.step_at IS 'When somebody has to look next; NULL when nothing is left to do.';
COMMENT ON COLUMN tickwright.reports.check_at IS 'When the delayed check is due: what is missing is announced again, or the report gives up.';
COMMENT ON COLUMN tickwright.reports.tries IS 'Steps that were begun for this stage and did not get through.';
COMMENT ON COLUMN tickwright.reports.manifest IS 'What the file was made of, part by part, and what is missing.';

CREATE TABLE tickwright.report_parts (
  report_id  bigint      NOT NULL REFERENCES tickwright.reports ON DELETE CASCADE,
  listener   text        COLLATE "C" NOT NULL,
  stage      smallint    NOT NULL,
  kind       text        NOT NULL CHECK (kind IN ('function', 'sql', 'service')),
  served_by  text        COLLATE "C" NOT NULL CHECK (served_by ~ '^(function|source|service):.'),
  required   boolean     NOT NULL,
  epoch      integer     NOT NULL DEFAULT 1,
  state      text        NOT NULL CHECK (state IN ('waiting', 'due', 'running', 'done', 'failed', 'dropped')),
  due_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  attempts   integer     NOT NULL DEFAULT 0,
  fence      bigint      NOT NULL DEFAULT 0,
  owner      bigint,
  began_at   timestamptz,
  done_at    timestamptz,
  rows       bigint      NOT NULL DEFAULT 0,
  bytes      bigint      NOT NULL DEFAULT 0,
  checksum   text,
  columns    jsonb,
  place      text        CHECK (place IN ('redis', 'postgres', 'object')),
  object_key text,
  error      text,
  PRIMARY KEY (report_id, listener),
  CONSTRAINT report_parts_owner CHECK ((owner IS NOT NULL) = (state = 'running')),
  CONSTRAINT report_parts_done CHECK (state <> 'done' OR (place IS NOT NULL AND checksum IS NOT NULL))
) WITH (fillfactor = 50);
CREATE INDEX report_parts_due ON tickwright.report_parts (served_by, due_at) WHERE state = 'due';
CREATE INDEX report_parts_owner ON tickwright.report_parts (owner) WHERE owner IS NOT NULL;
COMMENT ON COLUMN tickwright.reports.cleared_at IS 'When upkeep removed what was left of it in the object store, but for its file.';
COMMENT ON TABLE tickwright.report_parts IS 'The ledger: what each report expects of whom, frozen when it was asked for, and what became of it.';
COMMENT ON COLUMN tickwright.report_parts.served_by IS 'Who can bring it: a process with that function or that source, or the service of that name.';
COMMENT ON COLUMN tickwright.report_parts.due_at IS 'From when on any process may claim it without having heard of it.';
COMMENT ON COLUMN tickwright.report_parts.fence IS 'Rises with each claim; what a listener writes carries it.';
COMMENT ON COLUMN tickwright.report_parts.rows IS 'Rows so far while it runs.';
COMMENT ON COLUMN tickwright.report_parts.checksum IS 'SHA-256 of the rows as NDJSON, wherever they are kept.';

CREATE TABLE tickwright.report_data (
  report_id bigint  NOT NULL,
  listener  text    COLLATE "C" NOT NULL,
  epoch     integer NOT NULL,
  data      bytea   NOT NULL,
  PRIMARY KEY (report_id, listener),
  FOREIGN KEY (report_id, listener) REFERENCES tickwright.report_parts ON DELETE CASCADE
);
COMMENT ON TABLE tickwright.report_data IS 'Small parts, where there is no Redis or it was away; gone when the report is over.';

CREATE TABLE tickwright.report_links (
  id     smallint PRIMARY KEY DEFAULT 1 CHECK (id = 1),
  secret text     NOT NULL
);
INSERT INTO tickwright.report_links (secret) VALUES (gen_random_uuid()::text || gen_random_uuid()::text);
COMMENT ON TABLE tickwright.report_links IS 'What signs links to files; replace it and every link ends.';
