-- name: put_messages
-- Store messages; an existing one (same topic and id) stays unchanged. Index: messages_once.
INSERT INTO tickwright.messages (topic, message_id, key, headers, content_type, payload)
SELECT topic, message_id, key, headers::jsonb, content_type, payload
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[])
    AS new (topic, message_id, key, headers, content_type, payload)
ON CONFLICT (topic, message_id) DO NOTHING;

-- name: take_messages
-- Lease up to $2 available messages of a topic, oldest first. A message with too many deliveries becomes dead instead.
-- Index: messages_ready.
UPDATE tickwright.messages m
   SET status       = CASE WHEN m.deliveries >= $4 THEN 'dead' ELSE 'ready' END,
       finished_at  = CASE WHEN m.deliveries >= $4 THEN clock_timestamp() END,
       error        = CASE WHEN m.deliveries >= $4 THEN coalesce(m.error, 'delivered too often') ELSE m.error END,
       deliveries   = m.deliveries + CASE WHEN m.deliveries >= $4 THEN 0 ELSE 1 END,
       fence        = greatest(m.fence, (SELECT tickwright.fence_floor())) + 1,
       available_at = clock_timestamp() + $3::interval
 WHERE m.seq = ANY (ARRAY (SELECT seq FROM tickwright.messages
                            WHERE topic = $1 AND status = 'ready' AND available_at <= clock_timestamp()
                            ORDER BY available_at, seq LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING m.seq, m.topic, m.message_id, m.key, m.headers::text AS headers, m.content_type, m.payload,
          m.status, m.deliveries, m.fence, m.created_at;

-- name: ack_message
-- Finish a message if $2 is its fence. Index: messages_pkey.
UPDATE tickwright.messages SET status = 'done', finished_at = clock_timestamp(), error = NULL
 WHERE seq = $1 AND fence = $2 AND status = 'ready'
RETURNING seq;

-- name: nack_message
-- Release a message after a failure, available again after $3. The last allowed delivery makes it dead.
-- Index: messages_pkey.
UPDATE tickwright.messages
   SET status       = CASE WHEN deliveries >= $5 THEN 'dead' ELSE 'ready' END,
       finished_at  = CASE WHEN deliveries >= $5 THEN clock_timestamp() END,
       available_at = clock_timestamp() + $3::interval,
       fence        = fence + 1,
       error        = left($4, 1000)
 WHERE seq = $1 AND fence = $2 AND status = 'ready'
RETURNING seq;

-- name: release_message
-- Release a message that was not started; this does not count as a delivery. Index: messages_pkey.
UPDATE tickwright.messages
   SET available_at = clock_timestamp(), deliveries = deliveries - 1, fence = fence + 1
 WHERE seq = $1 AND fence = $2 AND status = 'ready'
RETURNING seq;

-- name: renew_message
-- Extend the lease of a message that is still held. Index: messages_pkey.
UPDATE tickwright.messages SET available_at = clock_timestamp() + $3::interval
 WHERE seq = $1 AND fence = $2 AND status = 'ready'
RETURNING seq;

-- name: purge_messages
-- Delete at most $3 done messages of a topic that finished longer than $2 ago. Index: messages_finished.
DELETE FROM tickwright.messages
 WHERE seq = ANY (ARRAY (SELECT seq FROM tickwright.messages
                          WHERE topic = $1 AND status <> 'ready' AND status = 'done'
                            AND finished_at < clock_timestamp() - $2::interval
                          ORDER BY finished_at LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING seq;
