-- name: find
-- The callers of these valid keys and session tokens, and the database's clock; a session that was not seen for a minute is `stale`.
-- Index: api_keys_hash_key, sessions_hash_key, api_keys_pkey.
SELECT k.id, k.name, k.role, k.scopes, found.hash, found.session_id, found.stale, date_part('epoch', clock_timestamp()) AS now_s
  FROM (SELECT 1) AS one
  LEFT JOIN (
    SELECT id AS key_id, hash, NULL::bigint AS session_id, false AS stale FROM tickwright.api_keys WHERE hash = ANY ($1::bytea[])
    UNION ALL
    SELECT key_id, hash, id, seen_at < clock_timestamp() - interval '1 minute' FROM tickwright.sessions
     WHERE hash = ANY ($1::bytea[]) AND least(expires_at, idle_until) > clock_timestamp()) AS found
    JOIN tickwright.api_keys k
      ON k.id = found.key_id AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
    ON true;
