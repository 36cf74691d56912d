-- The age of an idempotency key was counted from when its job was scheduled: the key of a job that was due a week ahead, or was retried as a dead letter, was
-- forgotten with the end of the job, and the same key made a second job. It counts from the end now, whoever ends the job. A key that is less than an hour old
-- is left as it is (retention waits an hour longer), so that jobs that end soon cost a probe of job_keys_pkey and no write, and jobs without keys nothing.
-- The function runs at the end of the statement that ends jobs, behind all its row locks: an insert that waits for a key here holds up no worker.
-- Forward on a live system: a function and a trigger are replaced; the function does what it did while the trigger is the old one.

CREATE OR REPLACE FUNCTION tickwright.free_job_key() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
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

CREATE OR REPLACE TRIGGER scheduled_tasks_deleted AFTER DELETE ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (OLD.idempotency_key IS NOT NULL) EXECUTE FUNCTION tickwright.free_job_key();

COMMENT ON COLUMN tickwright.job_keys.created_at IS 'When the key was given, or within an hour when its job ended last.';
