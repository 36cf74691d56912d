-- name: list_audit
-- A page of the audit trail before the line $1, newest first: of an action $2, of actions with the prefix $3, of a subject $4, of an actor
-- $5. With a filter it reads at most $7 lines; last_id is the last one where it stopped. Index: audit_pkey.
SELECT found.*, searched.last_id
  FROM (SELECT CASE WHEN num_nonnulls($2::text, $3::text, $4::text, $5::text) > 0 THEN
                 (SELECT id FROM tickwright.audit WHERE id < $1 ORDER BY id DESC OFFSET $7 - 1 LIMIT 1) END AS last_id) AS searched
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
