-- A report says of itself which one it is: two databases that share a Redis have reports of the same number. Forward on a live system: the
-- default of old rows is kept in the catalogue, and none is rewritten.
ALTER TABLE tickwright.reports ADD COLUMN nonce text NOT NULL DEFAULT '';
ALTER TABLE tickwright.reports ALTER COLUMN nonce SET DEFAULT replace(gen_random_uuid()::text, '-', '');
COMMENT ON COLUMN tickwright.reports.nonce IS
  'Random: what Redis has of a report of the same number in another database is not taken for ours. Empty for reports older than this column.';
