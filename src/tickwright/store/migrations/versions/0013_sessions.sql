-- Signed-in browsers. Forward on a live system: a new table and nothing else; old code signs browsers in without it.

CREATE TABLE tickwright.sessions (
  id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  hash       bytea       NOT NULL UNIQUE,
  key_id     bigint      NOT NULL REFERENCES tickwright.api_keys ON DELETE CASCADE,
  client     text        NOT NULL DEFAULT '' CHECK (length(client) <= 200),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  idle_until timestamptz NOT NULL,
  expires_at timestamptz NOT NULL
);
CREATE INDEX sessions_of_key ON tickwright.sessions (key_id, id);
COMMENT ON TABLE tickwright.sessions IS 'Browsers that signed in with an API key; good as long as the key and this row are.';
COMMENT ON COLUMN tickwright.sessions.hash IS 'SHA-256 of a token with 256 random bits, which only the browser has, in a cookie.';
COMMENT ON COLUMN tickwright.sessions.seen_at IS 'Some minute in which it was used; written once a minute at most.';
