-- name: delete_alerts
-- Delete alerts that were resolved longer than $1 ago, at most $2. Small: rules times subjects times days.
DELETE FROM tickwright.alerts
 WHERE id = ANY (ARRAY (SELECT id FROM tickwright.alerts
                         WHERE state = 'resolved' AND resolved_at < clock_timestamp() - $1::interval
                         ORDER BY id LIMIT $2));

-- name: delete_sessions
-- Delete browsers' sessions that ended longer than $1 ago, at most $2. Small: a row per sign-in of a day.
DELETE FROM tickwright.sessions
 WHERE id = ANY (ARRAY (SELECT id FROM tickwright.sessions
                         WHERE least(expires_at, idle_until) < clock_timestamp() - $1::interval ORDER BY id LIMIT $2));
