-- A session can refuse claims that it sent earlier: the number that a claim has to carry. Forward on a live system: the default of old rows is
-- kept in the catalogue, and none is rewritten. Releases that know nothing of it send no number and refuse none.
ALTER TABLE tickwright.workers ADD COLUMN claims_from bigint NOT NULL DEFAULT 0;
COMMENT ON COLUMN tickwright.workers.claims_from IS
  'Claims of this session with a lower number take nothing: they were sent before it released what it did not know of.';
