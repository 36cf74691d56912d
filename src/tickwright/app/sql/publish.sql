-- name: publish
-- A message for the relay, in the caller's transaction: it leaves after the commit or never. JSON goes in as text: a codec of the caller's
-- would encode it once more.
INSERT INTO tickwright.outbox (destination, key, payload, headers)
VALUES ($1::text, $2::text, CAST($3::text AS jsonb), CAST($4::text AS jsonb)) RETURNING id;
