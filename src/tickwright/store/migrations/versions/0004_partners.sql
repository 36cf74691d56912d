-- What all processes know together of a partner, and the polls that wait inside PostgreSQL to be carried out. See ADR-0015.
-- Forward on a live system: it only creates.

------------------------------------------------------------------------------------------------ the partner contract
CREATE TABLE tickwright.partner_states (
  partner_no    smallint    PRIMARY KEY REFERENCES tickwright.partners (partner_no) ON DELETE CASCADE,
  next_free_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  blocked_until timestamptz,
  breaker       text        NOT NULL DEFAULT 'closed' CHECK (breaker IN ('closed', 'open', 'half_open')),
  open_until    timestamptz,
  opened_times  integer     NOT NULL DEFAULT 0 CHECK (opened_times >= 0),
  trial_owner   bigint,
  trial_until   timestamptz,
  window_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  window_ok     integer     NOT NULL DEFAULT 0 CHECK (window_ok >= 0),
  window_failed integer     NOT NULL DEFAULT 0 CHECK (window_failed >= 0),
  failing_since timestamptz,
  last_error    text,
  last_error_at timestamptz,
  changed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 20);
COMMENT ON TABLE tickwright.partner_states IS 'What every process keeps to when it calls a partner: one row per partner that was ever called.';
COMMENT ON COLUMN tickwright.partner_states.next_free_at IS 'The first instant for a call that no process has taken yet (GCRA); nothing is saved up.';
COMMENT ON COLUMN tickwright.partner_states.blocked_until IS 'The partner asked for silence until then (Retry-After); nobody calls before.';
COMMENT ON COLUMN tickwright.partner_states.trial_owner IS 'The session whose single call tries a half-open breaker.';
COMMENT ON COLUMN tickwright.partner_states.window_at IS 'Since when window_ok and window_failed are counted; they decide whether the breaker opens.';
COMMENT ON COLUMN tickwright.partner_states.changed_at IS 'When the breaker changed its state.';

CREATE TABLE tickwright.partner_shares (
  partner_no smallint NOT NULL REFERENCES tickwright.partners (partner_no) ON DELETE CASCADE,
  worker     bigint   NOT NULL REFERENCES tickwright.workers ON DELETE CASCADE,
  granted    integer  NOT NULL CHECK (granted >= 0),
  PRIMARY KEY (partner_no, worker)
) WITH (fillfactor = 20);
COMMENT ON TABLE tickwright.partner_shares IS
  'How much of a partner''s concurrency each session may use; over all sessions that live the sum never exceeds it.';

-- Quiet hours as partners/quiet.py reads them, for what decides in SQL: "[mon,tue ]HH:MM-HH:MM ZONE", one text or an array of at most
-- 20. An end that is not above the begin is on the next day; days are those on which it begins. A local time that comes twice
-- is the first one, one that does not come is as long after midnight as if the clock had not changed: in both as Python has it.
CREATE FUNCTION tickwright.before_change(wall timestamp, later timestamptz, zone text) RETURNS timestamptz LANGUAGE sql STABLE
RETURN ((later - interval '24 hours') AT TIME ZONE 'UTC' + (wall - (later - interval '24 hours') AT TIME ZONE zone)) AT TIME ZONE 'UTC';
CREATE FUNCTION tickwright.first_instant(wall timestamp, zone text) RETURNS timestamptz LANGUAGE sql STABLE
RETURN CASE WHEN tickwright.before_change(wall, wall AT TIME ZONE zone, zone) < wall AT TIME ZONE zone
             AND tickwright.before_change(wall, wall AT TIME ZONE zone, zone) AT TIME ZONE zone = wall
            THEN tickwright.before_change(wall, wall AT TIME ZONE zone, zone)
            ELSE wall AT TIME ZONE zone END;
COMMENT ON FUNCTION tickwright.first_instant(timestamp, text) IS
  'The instant of a local time; the first of two where the clock is put back, which PostgreSQL by itself takes for the second.';

-- Zones are regions, and the few names without one: PostgreSQL would also take an abbreviation ("EDT") or a rule ("FOO+3").
-- Four of those names are abbreviations without summer time to PostgreSQL, but zones with it in the time zone database.
CREATE FUNCTION tickwright.quiet_at(settings jsonb, at timestamptz) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
  quiet jsonb := settings->'quiet';
  entry jsonb;
  part text[];
  days text[];
  zone text;
  begins integer;
  ends integer;
  day date;
  found boolean := false;
BEGIN
  quiet := CASE jsonb_typeof(quiet) WHEN 'string' THEN jsonb_build_array(quiet) WHEN 'array' THEN quiet ELSE '[]' END;
  IF jsonb_array_length(quiet) > 20 THEN
    RETURN false;
  END IF;
  FOR entry IN SELECT value FROM jsonb_array_elements(quiet) LOOP
    part := CASE jsonb_typeof(entry) WHEN 'string' THEN regexp_match(entry #>> '{}', -- no {1,60} and such: they make it twenty times slower
      '^([a-z,]+ )?([0-9][0-9]):([0-5][0-9])-([0-9][0-9]):([0-5][0-9]) ([A-Za-z0-9_+/-]+)$') END;
    days := string_to_array(rtrim(part[1]), ',');
    zone := part[6];
    begins := part[2]::integer * 60 + part[3]::integer;
    ends := part[4]::integer * 60 + part[5]::integer;
    IF part IS NULL OR begins > 1439 OR ends > 1440 OR begins = ends OR length(zone) > 60
       OR NOT coalesce(days, '{}') <@ '{mon,tue,wed,thu,fri,sat,sun}' OR zone !~ (
         '^([A-Z][A-Za-z]+(/[A-Za-z_-]+)+|Etc/GMT(0|[+-][0-9]|[+-]1[0-2]|-1[34])?'
         '|UTC|GMT|CET|EET|MET|WET|EST|MST|HST|(EST|CST|MST|PST)[5-8][ECMP]DT|GMT[+-]?0|UCT|Zulu|Universal|Greenwich|Cuba|Egypt|Eire|GB'
         '|GB-Eire|Hongkong|Iceland|Iran|Israel|Jamaica|Japan|Kwajalein|Libya|NZ|NZ-CHAT|Navajo|PRC|Poland|Portugal|ROC|ROK|Singapore'
         '|Turkey|W-SU)$') THEN
      RETURN false;
    END IF;
    zone := CASE zone WHEN 'CET' THEN 'Europe/Brussels' WHEN 'MET' THEN 'Europe/Brussels' WHEN 'EET' THEN 'Europe/Athens'
                      WHEN 'WET' THEN 'Europe/Lisbon' ELSE zone END;
    ends := CASE ends WHEN 0 THEN 1440 ELSE ends END;
    ends := CASE WHEN ends > begins THEN ends ELSE ends + 1440 END;
    day := (at AT TIME ZONE zone)::date - 1;
    FOR back IN 0..1 LOOP
      found := found OR ((days IS NULL OR to_char(day, 'dy') = ANY (days))
        AND at >= tickwright.first_instant(day + make_interval(mins => begins), zone)
        AND at < tickwright.first_instant(day + make_interval(mins => ends), zone));
      day := day + 1;
    END LOOP;
  END LOOP;
  RETURN coalesce(found, false);
EXCEPTION WHEN data_exception THEN -- there is no such zone
  RETURN false;
END $$;
COMMENT ON FUNCTION tickwright.quiet_at(jsonb, timestamptz) IS
  'Whether nobody calls a partner with these settings at that instant, by its quiet hours; what cannot be read is not quiet.';

------------------------------------------------------------------------------------------------ polls that wait
CREATE TABLE tickwright.poll_queue (
  seq          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  due_at       timestamptz NOT NULL,
  slot_id      integer     NOT NULL,
  partner_no   smallint    NOT NULL,
  ids          bigint[]    NOT NULL,
  account_nos  integer[]   NOT NULL,
  external_ids text[]      NOT NULL,
  owner        bigint,
  taken_at     timestamptz,
  CHECK (cardinality(ids) BETWEEN 1 AND 1000),
  CHECK (cardinality(account_nos) = cardinality(ids)),
  CHECK (cardinality(external_ids) = cardinality(ids))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE INDEX poll_queue_waiting ON tickwright.poll_queue (partner_no, due_at, seq) WHERE owner IS NULL;
CREATE INDEX poll_queue_taken ON tickwright.poll_queue (owner) WHERE owner IS NOT NULL;
COMMENT ON TABLE tickwright.poll_queue IS
  'Published polls that no consumer has finished, where there is no Kafka: one row per second, partner and at most a thousand trackers.';
COMMENT ON COLUMN tickwright.poll_queue.due_at IS 'The due slot to the second: (tracker id, due_at) is the message id.';
COMMENT ON COLUMN tickwright.poll_queue.owner IS 'Token of the session that carries it out; whoever declares that session lost takes it back.';
