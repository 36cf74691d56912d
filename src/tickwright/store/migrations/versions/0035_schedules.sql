-- Periodic jobs: one job per occurrence of a schedule. See docs/adr/0037. Forward on a live system: it only creates. A process of the release before
-- that holds the lease campaign-producer makes no jobs of schedules; they are late until a new process has the lease.
CREATE TABLE tickwright.schedules (
  name          varchar(100) COLLATE "C" PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]*$'),
  task_type     varchar(50)  COLLATE "C" NOT NULL CHECK (task_type ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]*$'),
  payload       jsonb        NOT NULL DEFAULT '{}' CHECK (tickwright.json_fits(payload)),
  cron          text         CHECK (length(cron) <= 256),
  every         interval     CHECK (every BETWEEN '1 second' AND '366 days' AND date_part('month', every) = 0 AND date_part('year', every) = 0
                                    AND date_part('epoch', every) = trunc(date_part('epoch', every))),
  first_at      timestamptz  CHECK (first_at >= '1970-01-01Z' AND first_at < '9999-01-01Z'),
  time_zone     text         NOT NULL DEFAULT 'UTC' CHECK (length(time_zone) <= 60),
  spread        interval     NOT NULL DEFAULT '0' CHECK (spread BETWEEN '0' AND '1 day'),
  overlap       text         NOT NULL DEFAULT 'allow' CHECK (overlap IN ('allow', 'skip', 'replace')),
  misfire       text         NOT NULL DEFAULT 'one' CHECK (misfire IN ('one', 'all', 'none')),
  misfire_max   integer      NOT NULL DEFAULT 100 CHECK (misfire_max BETWEEN 1 AND 1000),
  misfire_grace interval     NOT NULL DEFAULT '1 minute' CHECK (misfire_grace BETWEEN '0' AND '7 days'),
  priority      smallint     NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
  max_attempts  integer      CHECK (max_attempts BETWEEN 1 AND 1000),
  timeout_ms    integer      CHECK (timeout_ms BETWEEN 1 AND 86400000),
  expires_after interval     CHECK (expires_after BETWEEN '1 second' AND '366 days'),
  paused_at     timestamptz,
  set_by        text         NOT NULL DEFAULT 'operator' CHECK (set_by IN ('app', 'operator')),
  version       integer      NOT NULL DEFAULT 1 CHECK (version >= 1),
  created_at    timestamptz  NOT NULL DEFAULT clock_timestamp(),
  updated_at    timestamptz  NOT NULL DEFAULT clock_timestamp(),
  counts_from   timestamptz  NOT NULL DEFAULT clock_timestamp(),
  next_slot_at  timestamptz,
  due_at        timestamptz  DEFAULT '-infinity',
  last_slot_at  timestamptz,
  last_job_id   bigint,
  decided_at    timestamptz,
  problem       text,
  CONSTRAINT schedules_cron_or_every CHECK ((cron IS NULL) <> (every IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX schedules_due ON tickwright.schedules (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX schedules_failing ON tickwright.schedules (name) WHERE problem IS NOT NULL;
COMMENT ON TABLE tickwright.schedules IS 'Periodic jobs: what runs, and when. INSERT, UPDATE and DELETE take effect at once.';
COMMENT ON COLUMN tickwright.schedules.every IS 'Steps of wall-clock time in time_zone, counted from first_at, or from Monday, 5 January 1970, 0:00.';
COMMENT ON COLUMN tickwright.schedules.spread IS 'Its jobs run at a place of this window that depends on its name: the slot plus a fixed offset.';
COMMENT ON COLUMN tickwright.schedules.overlap IS 'Where a job of an earlier slot has not ended: allow both, skip the new one, or replace (cancel) the earlier one.';
COMMENT ON COLUMN tickwright.schedules.misfire IS 'What becomes of slots found later than misfire_grace: the newest of them, all up to misfire_max, or none.';
COMMENT ON COLUMN tickwright.schedules.expires_after IS 'A job that did not start within this time is cancelled.';
COMMENT ON COLUMN tickwright.schedules.counts_from IS 'When it was created, enabled, or its times were edited last: earlier slots are not its own.';
COMMENT ON COLUMN tickwright.schedules.next_slot_at IS 'The next occurrence that the producer has not decided about, without the spread; NULL until it has read the row, and where there is none.';
COMMENT ON COLUMN tickwright.schedules.due_at IS 'When the producer reads the row next; -infinity after an edit, NULL while it is paused and where no occurrence is left.';
COMMENT ON COLUMN tickwright.schedules.problem IS 'Why the producer cannot make its jobs.';

-- The producer writes the columns from next_slot_at on, which fires neither of these triggers.
CREATE FUNCTION tickwright.begin_schedule() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    NEW.version := OLD.version + 1;
    NEW.updated_at := clock_timestamp();
    IF (NEW.cron, NEW.every, NEW.first_at, NEW.time_zone, NEW.spread, NEW.paused_at IS NULL)
       IS NOT DISTINCT FROM (OLD.cron, OLD.every, OLD.first_at, OLD.time_zone, OLD.spread, OLD.paused_at IS NULL) THEN
      IF OLD.problem IS NOT NULL AND OLD.due_at IS NOT NULL THEN
        NEW.due_at := '-infinity';
      END IF;
      RETURN NEW;
    END IF;
  END IF;
  BEGIN
    PERFORM now() AT TIME ZONE NEW.time_zone;
  EXCEPTION WHEN invalid_parameter_value THEN
    RAISE EXCEPTION 'schedule refused: there is no time zone %', left(NEW.time_zone, 60)
      USING ERRCODE = 'check_violation', CONSTRAINT = 'schedules_time_zone_check', HINT = 'Write a name such as Europe/Kyiv or UTC.';
  END;
  NEW.counts_from := clock_timestamp();
  NEW.next_slot_at := NULL;
  NEW.problem := NULL;
  NEW.due_at := CASE WHEN NEW.paused_at IS NULL THEN '-infinity'::timestamptz END;
  RETURN NEW;
END $$;
COMMENT ON FUNCTION tickwright.begin_schedule() IS 'A schedule whose times are new counts from now on; every edit is a version.';
CREATE TRIGGER begin_schedule
  BEFORE INSERT OR UPDATE OF task_type, payload, cron, every, first_at, time_zone, spread, overlap, misfire, misfire_max, misfire_grace, priority,
                             max_attempts, timeout_ms, expires_after, paused_at, set_by
  ON tickwright.schedules FOR EACH ROW EXECUTE FUNCTION tickwright.begin_schedule();

CREATE FUNCTION tickwright.notify_of_schedules() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('tickwright_schedules', '');
  RETURN NULL;
END $$;
COMMENT ON FUNCTION tickwright.notify_of_schedules() IS 'Notify the producer that a schedule is new or edited.';
CREATE TRIGGER notify_of_schedules
  AFTER INSERT OR UPDATE OF task_type, payload, cron, every, first_at, time_zone, spread, overlap, misfire, misfire_max, misfire_grace, priority,
                            max_attempts, timeout_ms, expires_after, paused_at, set_by
  ON tickwright.schedules FOR EACH STATEMENT EXECUTE FUNCTION tickwright.notify_of_schedules();

CREATE TABLE tickwright.schedule_skips (
  schedule   varchar(100) COLLATE "C" NOT NULL REFERENCES tickwright.schedules ON DELETE CASCADE ON UPDATE CASCADE,
  slot_at    timestamptz NOT NULL,
  until_at   timestamptz NOT NULL,
  slots      bigint      NOT NULL CHECK (slots >= 1),
  reason     text        NOT NULL CHECK (reason IN ('overlap', 'misfire')),
  decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (schedule, slot_at)
);
COMMENT ON TABLE tickwright.schedule_skips IS 'Why occurrences have no job: the newest hundred ranges of each schedule.';
