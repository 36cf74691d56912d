-- name: find
-- The callers of these keys, as far as the keys are good, and the database's clock. Index: api_keys_hash_key.
SELECT k.id, k.name, k.role, k.hash, date_part('epoch', clock_timestamp()) AS now_s
  FROM (SELECT 1) AS one
  LEFT JOIN tickwright.api_keys k
    ON k.hash = ANY ($1::bytea[]) AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());
