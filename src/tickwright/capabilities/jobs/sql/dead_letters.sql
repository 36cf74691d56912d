-- name: list_dead
-- A page of dead letters, the youngest first. Index: scheduled_tasks_dead_at.
SELECT kind, id, subject, error_message, attempts, created_at, died_at FROM tickwright.dead_letters
 WHERE (died_at, id) < ($1::timestamptz, $2::bigint) AND ($3::text IS NULL OR kind = $3)
   AND ($4::text IS NULL OR subject = $4)
 ORDER BY died_at DESC, id DESC LIMIT $5;

-- name: pick_dead_messages
-- Dead outbox messages that a filter names, behind a place, the oldest first, locked; fits where the outbox takes them, which has rules that are
-- younger than some. Index: outbox_dead_pkey.
SELECT id, tickwright.message_fits(payload, headers) AS fits FROM tickwright.outbox_dead
 WHERE ($1::bigint[] IS NULL OR id = ANY ($1)) AND ($2::text IS NULL OR destination = $2) AND id > $4
 ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED;

-- name: count_dead
-- How many of a kind a filter names, as far as one looks: found, and looked at. Nothing indexes a subject, so the look
-- is bounded. Index: scheduled_tasks_dead_pkey or outbox_dead_pkey for ids, else rows as they lie.
SELECT count(*) FILTER (WHERE $3::text IS NULL OR subject = $3) AS found, count(*) AS looked FROM (
  SELECT subject FROM tickwright.dead_letters
   WHERE kind = $1 AND ($2::bigint[] IS NULL OR id = ANY ($2)) LIMIT $4
) AS seen;

-- name: revive_messages
-- Dead messages wait for the relay again, under their own ids. Index: outbox_dead_pkey.
WITH back AS (DELETE FROM tickwright.outbox_dead WHERE id = ANY ($1::bigint[]) RETURNING *)
INSERT INTO tickwright.outbox (id, destination, key, payload, headers, created_at, error_message)
OVERRIDING SYSTEM VALUE
SELECT id, destination, key, payload, headers, created_at, error_message FROM back;
