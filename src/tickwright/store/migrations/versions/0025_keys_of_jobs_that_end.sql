-- An insert whose idempotency key belonged to a job that was being deleted, and not committed yet, took that job for a live one, waited for the deletion, and
-- inserted a second job. A live row is locked now, so that it stays until the insert is committed; a row that is being deleted is passed over, and its key is
-- found in job_keys. Nothing waits. Forward on a live system: a function is replaced.

CREATE OR REPLACE FUNCTION tickwright.claim_job_key() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM ONLY tickwright.scheduled_tasks WHERE idempotency_key = NEW.idempotency_key FOR KEY SHARE SKIP LOCKED;
  IF FOUND THEN
    RETURN NEW;                            -- the unique index refuses it, or ON CONFLICT does nothing
  END IF;
  INSERT INTO tickwright.job_keys (key, job_id, digest) VALUES (NEW.idempotency_key, NEW.id, NEW.request_digest)
  ON CONFLICT DO NOTHING;
  IF FOUND THEN
    RETURN NEW;
  END IF;
  RETURN NULL;
END $$;
