-- What the operator's screen asks for. Forward on a live system: nullable columns, which cost a change of the catalogue, and indexes of small tables.

------------------------------------------------------------------------------------------------ jobs
-- The tables of finished jobs inherit both. A job whose first attempt succeeds has neither, and its row is as large as before.
ALTER TABLE tickwright.scheduled_tasks ADD COLUMN attempt_errors jsonb, ADD COLUMN traceparent text;
COMMENT ON COLUMN tickwright.scheduled_tasks.attempt_errors IS
  'The last ten attempts that failed, timed out, lost their worker or were interrupted: an array, written by what ends the attempt.';
COMMENT ON COLUMN tickwright.scheduled_tasks.traceparent IS 'W3C Trace Context of whoever scheduled the job; empty without one.';

------------------------------------------------------------------------------------------------ alerts
ALTER TABLE tickwright.alerts ADD COLUMN acknowledged_at timestamptz, ADD COLUMN acknowledged_by text, ADD COLUMN acknowledged_note text;
COMMENT ON COLUMN tickwright.alerts.acknowledged_at IS 'Since when somebody looks after it; one that fires again is a new alert, which nobody has seen.';
