-- Workers in other languages have sessions, too: a client renews its row through any api process and proves by a secret that the row is its own.
-- Forward on a live system: two columns without defaults, which rewrite no row. Old code ignores them, and declares such sessions lost and reclaims
-- their jobs as those of every session. See docs/adr/0038.
ALTER TABLE tickwright.workers ADD COLUMN remote_secret bytea, ADD COLUMN remote_lease interval;
COMMENT ON COLUMN tickwright.workers.remote_secret IS 'Of a remote worker: the SHA-256 of the secret with which its client proves that the session is its own.';
COMMENT ON COLUMN tickwright.workers.remote_lease IS 'Of a remote worker: by how much each heartbeat extends its lease.';
