-- A caller that waits for the end of a job asked for it again and again. It now marks the job, whose end then notifies the caller's process. See
-- docs/adr/0036. The trigger of a job's end fires for keys as before, and for awaited jobs: the end of any other job costs what it did.
-- Forward on a live system: a column with a default is added, no row is read; a trigger is replaced, and one is added for statements that write progress.

ALTER TABLE tickwright.scheduled_tasks ADD COLUMN awaited boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN tickwright.scheduled_tasks.awaited IS
  'A process waits, or waited, for the end of this job: its end and its progress notify tickwright_results. Says nothing about finished jobs.';

CREATE FUNCTION tickwright.end_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF OLD.awaited THEN
    PERFORM pg_notify('tickwright_results', OLD.id::text);
  END IF;
  IF OLD.idempotency_key IS NULL THEN
    RETURN NULL;
  END IF;
  IF OLD.owner IS NULL AND pg_trigger_depth() = 1 THEN            -- its user deleted a job that waits
    DELETE FROM tickwright.job_keys WHERE key = OLD.idempotency_key AND job_id = OLD.id;
  ELSIF NOT EXISTS (SELECT FROM tickwright.job_keys
                     WHERE key = OLD.idempotency_key
                       AND (job_id <> OLD.id OR created_at >= clock_timestamp() - interval '1 hour')) THEN
    INSERT INTO tickwright.job_keys AS k (key, job_id, digest, created_at)
    VALUES (OLD.idempotency_key, OLD.id, OLD.request_digest, clock_timestamp())
    ON CONFLICT (key) DO UPDATE SET created_at = excluded.created_at WHERE k.job_id = excluded.job_id;
  END IF;
  RETURN NULL;
END $$;
COMMENT ON FUNCTION tickwright.end_job IS
  'A job leaves the live table: notify those who wait for it, and start the age of its key (0026). In the transaction that ends the job, at the end of the statement.';
REVOKE EXECUTE ON FUNCTION tickwright.end_job() FROM PUBLIC;

CREATE OR REPLACE TRIGGER scheduled_tasks_deleted AFTER DELETE ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (OLD.idempotency_key IS NOT NULL OR OLD.awaited) EXECUTE FUNCTION tickwright.end_job();
DROP FUNCTION tickwright.free_job_key();

CREATE FUNCTION tickwright.notify_of_progress() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM pg_notify('tickwright_results', NEW.id::text);
  RETURN NULL;
END $$;
CREATE TRIGGER scheduled_tasks_progressed AFTER UPDATE OF progress ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (NEW.awaited) EXECUTE FUNCTION tickwright.notify_of_progress();
