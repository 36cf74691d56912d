-- name: valid_callers
-- Which of the API keys $3 and of the browsers' sessions $4 are valid. Index: api_keys_pkey, sessions_pkey.
ARRAY (SELECT k.id FROM tickwright.api_keys k
               WHERE k.id = ANY ($3::bigint[]) AND k.revoked_at IS NULL
                 AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())) AS good_keys,
       ARRAY (SELECT s.id FROM tickwright.sessions s
               WHERE s.id = ANY ($4::bigint[]) AND s.expires_at > clock_timestamp()) AS good_sessions;
