-- Every idle worker was notified of every job and made the same claim, so a job cost transactions for each worker. Sessions now name their groups:
-- processes of a group take turns at looking for work, and one of them at a time listens. An insert notifies of a job that is due sooner than the
-- next turn; of a later one only while a worker sleeps longer than that, which then holds the lock (7313, 5). See docs/adr/0033. A worker of the release
-- before, which does not hold it, finds a job that is inserted less than 1.5 s ahead by its poll, a second at most.
-- Forward on a live system: a column with a default is added, no row is read.
ALTER TABLE tickwright.workers ADD COLUMN work_groups text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN tickwright.workers.work_groups IS 'The groups of sessions, each with the same kind of work, in which this one takes turns. A process that is full or stops is in none.';

CREATE FUNCTION tickwright.notify_of_job(due timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF due > clock_timestamp() + interval '1.5 seconds' OR pg_try_advisory_xact_lock_shared(7313, 1) THEN
    RETURN;
  END IF;
  IF due <= clock_timestamp() + interval '0.3 seconds' THEN
    PERFORM pg_notify('tickwright_jobs', '');
  ELSIF NOT pg_try_advisory_xact_lock_shared(7313, 5) THEN
    PERFORM pg_notify('tickwright_jobs', 'later');
  END IF;
END $$;
COMMENT ON FUNCTION tickwright.notify_of_job IS
  'Notify a sleeping worker of a job that is due then, if it would not look before. An inserter that does not notify has a lock until it commits.';

CREATE OR REPLACE FUNCTION tickwright.ring_doorbell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM new_rows WHERE coalesce(retry_at, execute_at) <= clock_timestamp() + interval '1.5 seconds') THEN
    PERFORM tickwright.notify_of_job(min(coalesce(retry_at, execute_at))) FROM new_rows;
  END IF;
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION tickwright.ring_doorbell_for_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM tickwright.notify_of_job(NEW.execute_at);
  RETURN NULL;
END $$;

-- The registrar looked for registered trackers every second. Now a registration wakes it, if it sleeps, by the same protocol.
CREATE FUNCTION tickwright.notify_of_tracker() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT pg_try_advisory_xact_lock_shared(7313, 6) THEN
    PERFORM pg_notify('tickwright_intake', '');
  END IF;
  RETURN NULL;
END $$;
COMMENT ON FUNCTION tickwright.notify_of_tracker IS 'Notify a sleeping registrar. A transaction that does not notify has a lock until it commits.';
CREATE TRIGGER notify_of_tracker AFTER INSERT ON tickwright.tracker_intake FOR EACH STATEMENT EXECUTE FUNCTION tickwright.notify_of_tracker();
