-- name: publish
-- A message for the relay, in the caller's transaction: it leaves after the commit or never.
INSERT INTO tickwright.outbox (destination, key, payload, headers)
VALUES ($1::text, $2::text, $3::jsonb, $4::jsonb) RETURNING id;
