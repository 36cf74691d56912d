-- A job from before 0022 whose payload is too long as text could not be moved, and no other job with it: the check of an UPDATE looked at payloads that the
-- statement names or leaves as they are. It looks at those that change, byte by byte: of two equal numbers one may have 16,383 zeros more as text. Forward on a
-- live system: a trigger is replaced, no row is read.
CREATE OR REPLACE TRIGGER scheduled_tasks_edited
  BEFORE UPDATE OF task_type, execute_at, max_attempts, priority, timeout_ms, payload ON tickwright.scheduled_tasks
  FOR EACH ROW
  WHEN (NOT (NEW.task_type ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]*$'
             AND NEW.execute_at >= '1970-01-01Z' AND NEW.execute_at < '9999-01-01Z'
             AND NEW.max_attempts BETWEEN 1 AND 1000 AND NEW.priority BETWEEN -100 AND 100
             AND coalesce(NEW.timeout_ms, 1) BETWEEN 1 AND 86400000
             AND (tickwright.json_fits(NEW.payload) OR record_image_eq(ROW(NEW.payload), ROW(OLD.payload)))))
  EXECUTE FUNCTION tickwright.refuse_new_job();
