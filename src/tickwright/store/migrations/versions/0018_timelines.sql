-- The histories of this database: one row per system identifier and timeline that it was written under. See ADR-0025. Forward on a live system:
-- it only creates. Older releases do not look at it; their claims do not keep to the floor of fences.
CREATE TABLE tickwright.timelines (
  no          bigint      PRIMARY KEY,
  system_id   bigint      NOT NULL,
  timeline    text        NOT NULL,
  noticed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  noticed_lsn pg_lsn      NOT NULL DEFAULT pg_current_wal_lsn(),
  forked_lsn  text,
  fence_floor bigint      NOT NULL
);
COMMENT ON TABLE tickwright.timelines IS 'Each history of the database; the row with the highest number is the present one.';
COMMENT ON COLUMN tickwright.timelines.timeline IS 'The first eight digits of the names of its WAL files.';
COMMENT ON COLUMN tickwright.timelines.forked_lsn IS 'Where it left the history before; empty where the owner of the schema may not read the history file.';
COMMENT ON COLUMN tickwright.timelines.fence_floor IS 'Every fence that is given out from here on is above it.';

INSERT INTO tickwright.timelines (no, system_id, timeline, fence_floor)
SELECT 1, (pg_control_system()).system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8), 0;

CREATE FUNCTION tickwright.fence_floor() RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT fence_floor FROM tickwright.timelines ORDER BY no DESC LIMIT 1
$$;
CREATE FUNCTION tickwright.timeline_is_known() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN pg_is_in_recovery() THEN true
              ELSE (SELECT (t.system_id, t.timeline) = ((pg_control_system()).system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8))
                      FROM tickwright.timelines t ORDER BY no DESC LIMIT 1) END
$$;
COMMENT ON FUNCTION tickwright.timeline_is_known() IS 'Whether enter_timeline would change nothing; for heartbeats, whose connections a pooler may keep over a failover.';

COMMENT ON FUNCTION tickwright.fence_floor() IS 'Every claim gives a fence above it; one that rises with each change of the timeline.';

-- A standby that is promoted without the last commits would give their numbers out again. Sequences move on by a billion, those of
-- 32 bits by a million, within their bounds; an account's number begins again at its end and is never taken while it is in use.
CREATE FUNCTION tickwright.move_sequences() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  one record;
  last bigint;
BEGIN
  FOR one IN SELECT s.seqrelid::regclass AS name, s.seqmax, CASE WHEN s.seqmax > 2147483647 THEN 1000000000 ELSE 1000000 END AS step
               FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid WHERE c.relnamespace = 'tickwright'::regnamespace LOOP
    last := nextval(one.name);
    PERFORM setval(one.name, least(last + one.step, one.seqmax));
  END LOOP;
END $$;
REVOKE EXECUTE ON FUNCTION tickwright.move_sequences() FROM PUBLIC;

-- The first query of each new connection: a connection that takes writes stays on one timeline for its whole life. Returns nothing where all is
-- as it was; else what changed. Sessions end for good: their processes register again, and what they held is reclaimed.
CREATE FUNCTION tickwright.enter_timeline() RETURNS jsonb
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
COMMENT ON FUNCTION tickwright.enter_timeline() IS
  'Notices that the database has another timeline than before, and moves every number that is given out beyond those of the old one.';
