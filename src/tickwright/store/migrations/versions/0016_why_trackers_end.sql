-- What ended a tracker. Forward on a live system: no row is rewritten, and older releases leave it empty.
ALTER TABLE tickwright.trackers ADD COLUMN ended_by text CHECK (ended_by IN ('terminal', 'aged', 'request'));
COMMENT ON COLUMN tickwright.trackers.ended_by IS
  'What ended it: a terminal status, its age, or a request. Empty: it has not ended, or was ended by plain SQL or an older release.';
