-- A handler may keep the results of its steps, which a later attempt of the job finds instead of repeating them. They are in the job's row, so that the row's
-- fence, its history and its retention hold for them. See docs/adr/0046. Forward on a live system: a column without a default is added, no row is read or
-- rewritten, and a trigger is replaced.
ALTER TABLE tickwright.scheduled_tasks ADD COLUMN steps jsonb;
COMMENT ON COLUMN tickwright.scheduled_tasks.steps IS
  'The steps that its handler has done, by name: {"result": …, "at": instant, "attempt": number}; NULL without one.';
COMMENT ON COLUMN tickwright.scheduled_tasks.edits IS
  'How often its payload, priority, tags or metadata were edited, or its steps removed; NULL for never. Its version is fence + edits + 1.';

CREATE OR REPLACE TRIGGER scheduled_tasks_edits BEFORE UPDATE OF payload, priority, tags, metadata, steps ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN ((OLD.payload, OLD.priority, OLD.tags, OLD.metadata) IS DISTINCT FROM (NEW.payload, NEW.priority, NEW.tags, NEW.metadata)
        OR OLD.steps IS NOT NULL AND NEW.steps IS NULL)
  EXECUTE FUNCTION tickwright.edit_job();
