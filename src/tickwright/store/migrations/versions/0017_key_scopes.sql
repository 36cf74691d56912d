-- What a key opens instead of what its role opens. Forward on a live system: a constant default rewrites no row. A
-- scoped key has the role viewer here, which is all that a process of an older release sees in it.
ALTER TABLE tickwright.api_keys ADD COLUMN scopes text[] NOT NULL DEFAULT '{}' CHECK (scopes = '{}' OR role = 'viewer');
COMMENT ON COLUMN tickwright.api_keys.scopes IS 'All that the key opens; empty: what its role opens.';
