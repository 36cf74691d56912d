-- A change of the timeline is entered under the lock of a row, not of the table: every role may hold a weak lock of a table (PREPARE asks for no right), and
-- the strong one waited behind it, so that no process could connect. Forward on a live system: a function is replaced. A call of the old one that is
-- under way may insert the same number; then one of the two fails, and its process connects again.

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
  -- The newest row is the lock. A table without rows, as of a restore without data, gets one first; who has waited looks for a newer one.
  INSERT INTO tickwright.timelines (no, system_id, timeline, fence_floor)
  SELECT 0, 0, 'unknown', 0 WHERE NOT EXISTS (SELECT FROM tickwright.timelines) ON CONFLICT DO NOTHING;
  LOOP
    SELECT * INTO before FROM tickwright.timelines ORDER BY no DESC LIMIT 1 FOR UPDATE;
    EXIT WHEN NOT EXISTS (SELECT FROM tickwright.timelines WHERE no > before.no);
  END LOOP;
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
