-- Each api process with an open page read the overview every second. Now one of them reads it and shares it in this table. See docs/adr/0035.
-- Forward on a live system: a new table that old code does not know. Without a log, because a lost snapshot is read again.
CREATE UNLOGGED TABLE tickwright.overview_snapshots (
  format text PRIMARY KEY,
  fence bigint NOT NULL DEFAULT 1,
  due_at timestamptz NOT NULL,
  content text
);
COMMENT ON TABLE tickwright.overview_snapshots IS 'The newest snapshot of the overview, which one api process reads for all.';
COMMENT ON COLUMN tickwright.overview_snapshots.format IS 'Release and fields: processes of another one cannot read it.';
COMMENT ON COLUMN tickwright.overview_snapshots.fence IS 'Rises by one with every process that takes the reading over.';
COMMENT ON COLUMN tickwright.overview_snapshots.due_at IS 'When its process reads again; after a grace time, another one does.';
