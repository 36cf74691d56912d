-- name: delay_task
-- Make a message available again after $3 without counting the delivery; its headers count the delay.
-- Index: messages_pkey.
UPDATE tickwright.messages
   SET available_at = clock_timestamp() + $3::interval, deliveries = deliveries - 1, fence = fence + 1,
       headers = headers || jsonb_build_object('tickwright-delays', $4::text)
 WHERE seq = $1 AND fence = $2 AND status = 'ready'
RETURNING seq;

-- name: dead_letter_task
-- Dead-letter a message with its reason. Index: messages_pkey.
UPDATE tickwright.messages
   SET status = 'dead', finished_at = clock_timestamp(), fence = fence + 1, error = left($4, 1000),
       headers = headers || jsonb_build_object('tickwright-reason', $3::text)
 WHERE seq = $1 AND fence = $2 AND status = 'ready'
RETURNING seq;

-- name: drop_task
-- Delete a message that is done. Publish marks, not this table, prevent a second publish. Index: messages_pkey.
DELETE FROM tickwright.messages WHERE seq = $1 AND fence = $2 AND status = 'ready' RETURNING seq;

-- name: renew_tasks
-- Extend the leases of messages that are still held, and return those. Index: messages_pkey.
UPDATE tickwright.messages m SET available_at = clock_timestamp() + $3::interval
  FROM (SELECT seq, fence FROM unnest($1::bigint[], $2::bigint[]) AS held (seq, fence) ORDER BY seq) AS held
 WHERE m.seq = held.seq AND m.fence = held.fence AND m.status = 'ready'
RETURNING m.seq;

-- name: count_tasks
-- Count the available and the dead messages of a topic, each up to $2. Indexes: messages_ready, messages_finished.
SELECT (SELECT count(*) FROM (SELECT FROM tickwright.messages WHERE topic = $1 AND status = 'ready' AND available_at <= clock_timestamp()
                               LIMIT $2) AS waiting),
       (SELECT count(*) FROM (SELECT FROM tickwright.messages WHERE topic = $1 AND status <> 'ready' AND status = 'dead' LIMIT $2) AS dead);

-- name: count_dead
-- Count the dead messages of a topic. Index: messages_finished.
SELECT count(*) FROM tickwright.messages WHERE topic = $1 AND status <> 'ready' AND status = 'dead';

-- name: peek_dead
-- The oldest dead messages of a topic. Index: messages_finished.
SELECT message_id, headers::text AS headers, payload, coalesce(error, '') AS error, extract(epoch FROM finished_at)::float8 AS died_at_s
  FROM tickwright.messages WHERE topic = $1 AND status <> 'ready' AND status = 'dead' ORDER BY finished_at, seq LIMIT $2;

-- name: requeue_dead
-- Make dead messages available again, oldest first: all, or those with the ids $2. Index: messages_finished.
UPDATE tickwright.messages
   SET status = 'ready', finished_at = NULL, error = NULL, available_at = clock_timestamp(), deliveries = 0, fence = fence + 1,
       headers = headers - 'tickwright-reason' - 'tickwright-delays'
 WHERE seq = ANY (ARRAY (SELECT seq FROM tickwright.messages
                          WHERE topic = $1 AND status <> 'ready' AND status = 'dead' AND ($2::text[] IS NULL OR message_id = ANY ($2))
                          ORDER BY finished_at, seq LIMIT $3 FOR UPDATE))
RETURNING message_id;
