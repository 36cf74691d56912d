-- name: key_columns
-- The columns of a key, without its hash.
id, name, CASE WHEN scopes = '{}' THEN role END AS role, scopes, prefix, created_at, expires_at, revoked_at;

-- name: create
-- A new key; only its hash is stored.
INSERT INTO tickwright.api_keys (name, role, prefix, hash, expires_at, scopes)
VALUES ($1, $2, $3, $4, clock_timestamp() + $5::interval, $6)
RETURNING {key_columns};

-- name: succeed
-- A successor with the name, role and scopes of a key, and its expiry unless $4 is given. Index: api_keys_pkey.
INSERT INTO tickwright.api_keys (name, role, prefix, hash, expires_at, scopes)
SELECT name, role, $2, $3, coalesce(clock_timestamp() + $4::interval, expires_at), scopes FROM tickwright.api_keys WHERE id = $1
RETURNING {key_columns};

-- name: list
-- Every key without its hash, newest first. Small: a row per key.
SELECT {key_columns} FROM tickwright.api_keys ORDER BY id DESC LIMIT 10000;

-- name: lock
-- One key, locked. Index: api_keys_pkey.
SELECT {key_columns},
       revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp()) AS good
  FROM tickwright.api_keys WHERE id = $1 FOR UPDATE;

-- name: revoke
-- Refuse a key from now on. Index: api_keys_pkey.
UPDATE tickwright.api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE id = $1
RETURNING {key_columns};

-- name: expire
-- Expire a key after the overlap. Index: api_keys_pkey.
UPDATE tickwright.api_keys SET expires_at = least(expires_at, clock_timestamp() + $2::interval) WHERE id = $1;
