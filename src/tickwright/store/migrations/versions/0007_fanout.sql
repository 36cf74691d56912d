-- Entity fan-out: one message per entity, task type and window. See ADR-0016. Forward on a live system: it only creates.

------------------------------------------------------------------------------------------------ what is polled how often
CREATE TABLE tickwright.modules (
  name             text        PRIMARY KEY CHECK (name ~ '^[A-Z][A-Z0-9_]{0,49}$'),
  interval_seconds integer     NOT NULL CHECK (interval_seconds BETWEEN 1 AND 86400),
  timeout_ms       integer     NOT NULL DEFAULT 60000 CHECK (timeout_ms BETWEEN 10 AND 1500000),
  is_gated         boolean     NOT NULL DEFAULT false,
  set_by           text        NOT NULL DEFAULT 'sql' CHECK (set_by IN ('default', 'app', 'operator', 'sql')),
  paused_at        timestamptz,
  created_at       timestamptz NOT NULL DEFAULT now(),
  updated_at       timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tickwright.modules IS 'What entities are polled for, each on its own interval. The name is the TaskType of the message.';
COMMENT ON COLUMN tickwright.modules.interval_seconds IS 'Length of a window; windows are aligned to 1970 by the database''s clock.';
COMMENT ON COLUMN tickwright.modules.timeout_ms IS 'Of one run; below the broker''s acknowledgement timeout of 30 minutes.';
COMMENT ON COLUMN tickwright.modules.is_gated IS
  'Polled only where the scheduler''s environment says ENABLE_<NAME>_POLLING=true. Any other module is polled unless it says false.';
COMMENT ON COLUMN tickwright.modules.set_by IS 'What a program declares replaces what came with the product or from a program, nothing else.';

INSERT INTO tickwright.modules (name, interval_seconds, is_gated, set_by) VALUES
  ('LOCATIONS', 900, false, 'default'), ('SESSIONS', 300, true, 'default'),
  ('TARIFFS', 3600, false, 'default'), ('CDRS', 900, false, 'default');

CREATE TABLE tickwright.entities (
  code                    text        COLLATE "C" PRIMARY KEY CHECK (code ~ '^[A-Za-z0-9][A-Za-z0-9_.*@+-]{0,99}$'),
  party                   jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(party) = 'object' AND octet_length(party::text) <= 65536),
  is_polling_enabled      boolean     NOT NULL DEFAULT true,
  polling_enabled_modules text        NOT NULL DEFAULT '' CHECK (octet_length(polling_enabled_modules) <= 2000),
  partner                 text        REFERENCES tickwright.partners (name),
  config_version          bigint      NOT NULL DEFAULT 1,
  created_at              timestamptz NOT NULL DEFAULT now(),
  updated_at              timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX entities_partner ON tickwright.entities (partner) WHERE partner IS NOT NULL;
CREATE INDEX entities_polled ON tickwright.entities (polling_enabled_modules) WHERE is_polling_enabled;
COMMENT ON TABLE tickwright.entities IS 'Whom we poll, module by module. Schedulers keep the list in memory; a change reaches them at once.';
COMMENT ON COLUMN tickwright.entities.party IS 'Goes into every message as EntityParty, as it is: secrets are named here, never written.';
COMMENT ON COLUMN tickwright.entities.polling_enabled_modules IS 'Names of modules with commas between, such as LOCATIONS,TARIFFS.';
COMMENT ON COLUMN tickwright.entities.partner IS 'Whose limits and breaker calls to this entity keep to; NULL for none but its own.';

CREATE FUNCTION tickwright.entity_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.updated_at := clock_timestamp();
  NEW.config_version := OLD.config_version + 1;
  RETURN NEW;
END $$;
CREATE TRIGGER entity_changed BEFORE UPDATE ON tickwright.entities
  FOR EACH ROW WHEN (OLD IS DISTINCT FROM NEW) EXECUTE FUNCTION tickwright.entity_changed();

CREATE FUNCTION tickwright.tell_entities() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('tickwright_entities', '');
  RETURN NULL;
END $$;
CREATE TRIGGER tell_entities AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tickwright.entities
  FOR EACH STATEMENT EXECUTE FUNCTION tickwright.tell_entities();
CREATE TRIGGER tell_entities AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON tickwright.modules
  FOR EACH STATEMENT EXECUTE FUNCTION tickwright.tell_entities();

------------------------------------------------------------------------------------------------ what became of it
CREATE TABLE tickwright.fanout_cursors (
  entity_code       text        COLLATE "C" NOT NULL,
  task_type         text        NOT NULL,
  last_window_at    timestamptz NOT NULL DEFAULT '-infinity',
  last_success_at   timestamptz,
  fence             bigint      NOT NULL DEFAULT 0,
  owner             bigint,
  running_window_at timestamptz,
  running_since     timestamptz,
  failures          integer     NOT NULL DEFAULT 0 CHECK (failures >= 0),
  last_error        text,
  last_error_at     timestamptz,
  PRIMARY KEY (entity_code, task_type)
) WITH (fillfactor = 50);
CREATE INDEX fanout_cursors_owner ON tickwright.fanout_cursors (owner) WHERE owner IS NOT NULL;
CREATE INDEX fanout_cursors_failing ON tickwright.fanout_cursors (failures) WHERE failures > 1;
COMMENT ON TABLE tickwright.fanout_cursors IS
  'The ledger that decides: per entity and task type at most one run at a time, and none for a window that is not newer than the last success.';
COMMENT ON COLUMN tickwright.fanout_cursors.last_window_at IS 'The newest window that ran with success. Nothing runs for it, or for one before it, again.';
COMMENT ON COLUMN tickwright.fanout_cursors.last_success_at IS
  'When that run began: LastExecutedAt of the next one, so that nothing between two runs is missed.';
COMMENT ON COLUMN tickwright.fanout_cursors.fence IS 'Rises with each claim, from the clock on in microseconds; every write of a run carries it.';
COMMENT ON COLUMN tickwright.fanout_cursors.owner IS 'Token of the session whose run it is now; NULL for nobody''s.';
COMMENT ON COLUMN tickwright.fanout_cursors.failures IS 'Runs that failed since the last success.';

CREATE TABLE tickwright.fanout_windows (
  task_type  text        NOT NULL,
  window_at  timestamptz NOT NULL,
  succeeded  bigint      NOT NULL DEFAULT 0,
  failed     bigint      NOT NULL DEFAULT 0,
  superseded bigint      NOT NULL DEFAULT 0,
  expired    bigint      NOT NULL DEFAULT 0,
  PRIMARY KEY (window_at, task_type)
) WITH (fillfactor = 50);
COMMENT ON TABLE tickwright.fanout_windows IS 'What became of each window of a module, counted by the consumers; kept for 30 days.';
COMMENT ON COLUMN tickwright.fanout_windows.failed IS 'Runs that failed, those that were tried again included.';
COMMENT ON COLUMN tickwright.fanout_windows.superseded IS 'Messages that came when a newer window had run already.';
COMMENT ON COLUMN tickwright.fanout_windows.expired IS 'Messages dropped after their window''s end without a success.';

------------------------------------------------------------------------------------------------ who publishes, without Redis
CREATE TABLE tickwright.fanout_claims (
  window_at     timestamptz NOT NULL,
  task_type     text        NOT NULL,
  entity_code   text        COLLATE "C" NOT NULL,
  token         text        NOT NULL,
  claimed_until timestamptz NOT NULL,
  published_at  timestamptz,
  PRIMARY KEY (window_at, task_type, entity_code)
) WITH (fillfactor = 50);
COMMENT ON TABLE tickwright.fanout_claims IS
  'Which scheduler publishes which window of an entity, where Redis does not say: without one, or while it is away. Kept for an hour longer than the longest window.';
COMMENT ON COLUMN tickwright.fanout_claims.published_at IS 'Confirmed by the broker: nobody publishes this window again.';

------------------------------------------------------------------------------------------------ what operators are told
CREATE VIEW tickwright.listed_modules AS
SELECT l.list, p.name, l.entities
  FROM (SELECT polling_enabled_modules AS list, count(*) AS entities FROM tickwright.entities
         WHERE is_polling_enabled GROUP BY polling_enabled_modules) AS l
 CROSS JOIN LATERAL (SELECT DISTINCT upper(btrim(part, E' \t\r\n\f\v')) AS name FROM string_to_table(l.list, ',') AS part) AS p
 WHERE p.name <> '';
COMMENT ON VIEW tickwright.listed_modules IS 'What enabled entities name in polling_enabled_modules, and how many of them have that same list.';

CREATE VIEW tickwright.open_modules AS
SELECT m.name, m.interval_seconds, m.timeout_ms, m.is_gated, m.updated_at, g.opened, coalesce(g.opened, NOT m.is_gated) AS is_open
  FROM tickwright.modules m
 CROSS JOIN LATERAL (
   SELECT bool_or(CASE w.facts -> 'gates' -> m.name WHEN 'true' THEN true WHEN 'false' THEN false ELSE NOT m.is_gated END) AS opened
     FROM tickwright.workers w
    WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND jsonb_typeof(w.facts -> 'gates') = 'object') AS g
 WHERE m.paused_at IS NULL AND g.opened IS DISTINCT FROM false;
COMMENT ON VIEW tickwright.open_modules IS
  'Modules that are neither paused nor closed by the environment of every scheduler that lives; opened is NULL where none lives.';

CREATE VIEW tickwright.stale_entities AS
WITH judged AS MATERIALIZED (
  SELECT o.*, make_interval(secs => o.interval_seconds + o.timeout_ms / 1000.0) AS turn,
         make_interval(secs => 3 * o.interval_seconds + o.timeout_ms / 1000.0) AS within FROM tickwright.open_modules o
), excused AS MATERIALIZED (
  SELECT p.name AS partner, j.name AS module
    FROM tickwright.partners p CROSS JOIN judged j
   WHERE p.paused_at IS NOT NULL OR p.promised_since > clock_timestamp() - j.within
      OR tickwright.quiet_at(p.settings, clock_timestamp()) OR tickwright.quiet_at(p.settings, clock_timestamp() - j.turn)
      OR tickwright.quiet_at(p.settings, clock_timestamp() - 2 * j.turn)
)
SELECT j.name AS module, j.is_gated AND j.opened IS NULL AS in_doubt, e.code, c.last_success_at, coalesce(c.last_success_at, e.created_at) AS since
  FROM judged j
  JOIN tickwright.listed_modules l ON l.name = j.name
  JOIN tickwright.entities e ON e.is_polling_enabled AND e.polling_enabled_modules = l.list
  LEFT JOIN tickwright.fanout_cursors c ON c.entity_code = e.code AND c.task_type = j.name
 WHERE coalesce(c.last_success_at, '-infinity') < clock_timestamp() - j.within
   AND greatest(e.updated_at, j.updated_at) < clock_timestamp() - j.within
   AND NOT EXISTS (SELECT FROM excused x WHERE x.partner = e.partner AND x.module = j.name);
COMMENT ON VIEW tickwright.stale_entities IS
  'Enabled entities without a success for three intervals and a timeout, though row and module are older and their partner could be called.';
COMMENT ON COLUMN tickwright.stale_entities.in_doubt IS 'The module is gated, and no scheduler that lives says whether its gate is open.';
