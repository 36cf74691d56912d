-- name: list_dead
-- A page of dead letters, newest first. Index: scheduled_tasks_dead_at.
SELECT kind, id, subject, error_message, attempts, created_at, died_at FROM tickwright.dead_letters
 WHERE (died_at, id) < ($1::timestamptz, $2::bigint) AND ($3::text IS NULL OR kind = $3)
   AND ($4::text IS NULL OR subject = $4)
 ORDER BY died_at DESC, id DESC LIMIT $5;

-- name: pick_dead_messages
-- Dead outbox messages that a filter matches, behind the id $4, the oldest first, locked. fits: the outbox accepts them; its rules may be
-- newer than a message. Index: outbox_dead_pkey.
SELECT id, tickwright.message_fits(payload, headers) AS fits FROM tickwright.outbox_dead
 WHERE ($1::bigint[] IS NULL OR id = ANY ($1)) AND ($2::text IS NULL OR destination = $2) AND id > $4
 ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED;

-- name: count_dead
-- How many of a kind a filter matches among the first $4: found, and searched (read). No index has a subject, so the count is bounded. Index:
-- scheduled_tasks_dead_pkey or outbox_dead_pkey for ids, else none.
SELECT count(*) FILTER (WHERE $3::text IS NULL OR subject = $3) AS found, count(*) AS searched FROM (
  SELECT subject FROM tickwright.dead_letters
   WHERE kind = $1 AND ($2::bigint[] IS NULL OR id = ANY ($2)) LIMIT $4
) AS seen;

-- name: revive_messages
-- Return dead messages to the outbox, under their own ids. Index: outbox_dead_pkey.
WITH back AS (DELETE FROM tickwright.outbox_dead WHERE id = ANY ($1::bigint[]) RETURNING *)
INSERT INTO tickwright.outbox (id, destination, key, payload, headers, created_at, error_message)
OVERRIDING SYSTEM VALUE
SELECT id, destination, key, payload, headers, created_at, error_message FROM back;
