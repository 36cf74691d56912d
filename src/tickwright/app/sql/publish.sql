-- name: publish
-- Store a message for the relay, in the caller's transaction: it is sent after the commit or never. JSON is passed as
-- text, because a codec of the caller's would encode it again.
INSERT INTO tickwright.outbox (destination, key, payload, headers)
VALUES ($1::text, $2::text, CAST($3::text AS jsonb), CAST($4::text AS jsonb)) RETURNING id;
