-- A worker that stops, or whose slots are full, kept its share of a type's concurrency, and workers with free slots got none of it. It says now whether it
-- shares; a worker of the release before shares always. Forward on a live system: a column with a default is added, no row is read.
ALTER TABLE tickwright.type_grants ADD COLUMN shares boolean NOT NULL DEFAULT true;
COMMENT ON COLUMN tickwright.type_grants.shares IS 'Whether the worker claims; one that stops or is full has what it runs, and the others divide the rest.';
