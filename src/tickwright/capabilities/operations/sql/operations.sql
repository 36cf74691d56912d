-- name: list_audit
-- A page of the audit trail before the line $1, newest first: of an action $2, of actions that begin with $3, of a subject $4,
-- of an actor $5. It looks at $7 lines at most: last_id is where it stopped, if it did. Index: audit_pkey.
SELECT found.*, looked.last_id
  FROM (SELECT CASE WHEN num_nonnulls($2::text, $3::text, $4::text, $5::text) > 0 THEN
                 (SELECT id FROM tickwright.audit WHERE id < $1 ORDER BY id DESC OFFSET $7 - 1 LIMIT 1) END AS last_id) AS looked
  LEFT JOIN LATERAL (
    SELECT id, at, actor, action, subject, before, after
      FROM (SELECT * FROM tickwright.audit WHERE id < $1 ORDER BY id DESC LIMIT $7) AS a
     WHERE ($2::text IS NULL OR action = $2) AND ($3::text IS NULL OR starts_with(action, $3))
       AND ($4::text IS NULL OR subject = $4) AND ($5::text IS NULL OR actor = $5)
     ORDER BY id DESC LIMIT $6) AS found ON true
 ORDER BY found.id DESC;

-- name: list_alerts
-- A page of alerts, newest first. Index: alerts_pkey.
SELECT id, rule, subject, severity, summary, state, fired_at, seen_at, resolved_at, facts, acknowledged_at, acknowledged_by, acknowledged_note
  FROM tickwright.alerts
 WHERE id < $1 AND ($2::text IS NULL OR state = $2) ORDER BY id DESC LIMIT $3;

-- name: list_outbox
-- A page of messages that wait for the relay, newest first. Index: outbox_pkey.
SELECT id, destination, key, created_at, attempts, CASE WHEN isfinite(next_at) THEN next_at END AS next_at, error_message
  FROM tickwright.outbox WHERE id < $1 AND ($2::text IS NULL OR destination = $2) ORDER BY id DESC LIMIT $3;

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
