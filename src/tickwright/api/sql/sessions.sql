-- name: open
-- Open the session of a browser that signs in with a key. Index: sessions_pkey.
INSERT INTO tickwright.sessions (hash, key_id, client, idle_until, expires_at)
VALUES ($1, $2, $3, clock_timestamp() + $4::interval, clock_timestamp() + $5::interval)
RETURNING id;

-- name: bound
-- Delete all but the $2 newest sessions of a key. Index: sessions_of_key.
DELETE FROM tickwright.sessions
 WHERE key_id = $1
   AND id <= (SELECT id FROM tickwright.sessions WHERE key_id = $1 ORDER BY id DESC OFFSET $2 LIMIT 1);

-- name: close
-- Delete the session of a token; its cookie becomes invalid. Index: sessions_hash_key.
DELETE FROM tickwright.sessions WHERE hash = ANY ($1::bytea[]) RETURNING id;

-- name: touch
-- Record a use; a row is written once a minute at most. Index: sessions_pkey.
UPDATE tickwright.sessions SET seen_at = clock_timestamp(), idle_until = clock_timestamp() + $2::interval
 WHERE id = ANY ($1::bigint[]) AND seen_at < clock_timestamp() - interval '1 minute';

-- name: list
-- Valid sessions, newest first: of the key $1, or of all. Index: sessions_of_key, sessions_pkey.
SELECT s.id, s.key_id, k.name, k.role, s.client, s.created_at, s.seen_at, least(s.expires_at, k.expires_at) AS expires_at
  FROM tickwright.sessions s JOIN tickwright.api_keys k ON k.id = s.key_id
 WHERE ($1::bigint IS NULL OR s.key_id = $1) AND least(s.expires_at, s.idle_until) > clock_timestamp()
   AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
 ORDER BY s.id DESC LIMIT 1000;

-- name: revoke
-- End a session: of the key $2, or of any. Index: sessions_pkey.
DELETE FROM tickwright.sessions WHERE id = $1 AND ($2::bigint IS NULL OR key_id = $2) RETURNING key_id;
