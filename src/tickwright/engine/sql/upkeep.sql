-- name: delete_dead_messages
-- Delete at most $2 outbox dead letters older than $1. Index: outbox_dead_at.
DELETE FROM tickwright.outbox_dead
 WHERE id = ANY (ARRAY (SELECT id FROM tickwright.outbox_dead
                         WHERE died_at < clock_timestamp() - $1::interval ORDER BY died_at LIMIT $2));

-- name: delete_workers
-- Delete sessions that were lost longer than $1 ago, $2 at most. Small: a row per session.
DELETE FROM tickwright.workers
 WHERE id = ANY (ARRAY (SELECT id FROM tickwright.workers
                         WHERE lost_at < clock_timestamp() - $1::interval ORDER BY id LIMIT $2));
