-- Most answers of couriers repeat what is known. With their mark in the row, which stays narrow, they are known by one comparison: the events
-- themselves may lie beside it. Forward on a live system: no row is rewritten; older releases leave it as it is, which is right, for a mark says that
-- this very answer was judged.
ALTER TABLE tickwright.trackers ADD COLUMN told_mark bigint;
COMMENT ON COLUMN tickwright.trackers.told_mark IS
  'A hash of the last ten scan events of the answer that was written last: one with the same has nothing new. Empty: not known.';
