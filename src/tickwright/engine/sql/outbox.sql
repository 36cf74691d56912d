-- name: put_message
-- Store one message in the caller's own transaction. Index: outbox_pkey.
INSERT INTO tickwright.outbox (destination, key, payload, headers) VALUES ($1, $2, $3::jsonb, $4::jsonb) RETURNING id;

-- name: claim_rows
-- Read what may be sent now: at most $4 lanes after $1, without the lanes in $2, at most $3 rows a lane (one for the lanes in $6) and $5
-- bytes in all. The last row has the last lane walked and the number of lanes walked.
-- Tried rows come first and have at most half of the places. A lane with one place gives it to a new row if it has any, so rows that are
-- refused again and again block no new one. A new row waits while an older tried row has its key. Only the first $8 new rows of a lane are
-- checked for that, one by one, so neither such rows nor a plan make the claim slow.
-- Nothing is written: the lock on the relay's lease in this transaction excludes others. There is no bound on id, so a row that commits late
-- is found. The lanes of the $7 newest rows are included: beside very many lanes they would wait long.
-- Indexes: outbox_lane, a probe a lane and a range; outbox_tried_keys, a probe a new row with a key; for the newest, outbox_pkey.
WITH RECURSIVE walk AS (
  (SELECT hashtextextended(o.destination, 0) AS h FROM tickwright.outbox o
    WHERE hashtextextended(o.destination, 0) > $1 ORDER BY 1 LIMIT 1)
  UNION ALL
  SELECT n.h FROM walk w CROSS JOIN LATERAL (
    SELECT hashtextextended(o.destination, 0) AS h FROM tickwright.outbox o
     WHERE hashtextextended(o.destination, 0) > w.h ORDER BY 1 LIMIT 1) AS n
), walked AS MATERIALIZED (
  SELECT h FROM walk LIMIT $4
), lane AS MATERIALIZED (
  SELECT h, CASE WHEN careful THEN 1 ELSE $3::integer END AS rows_max,
         CASE WHEN careful THEN 0 ELSE ($3::integer + 1) / 2 END AS tried_max, careful::integer AS tried_last
    FROM (SELECT h FROM walked
           UNION
          SELECT hashtextextended(newest.destination, 0)
            FROM (SELECT o.destination FROM tickwright.outbox o ORDER BY o.id DESC LIMIT $7) AS newest) AS searched,
         LATERAL (SELECT h = ANY ($6::bigint[]) AS careful) AS failed
), found AS (
  SELECT lane.h, r.*
    FROM lane CROSS JOIN LATERAL (
      (SELECT o.id, o.destination, o.key, o.payload, o.headers, o.attempts
         FROM tickwright.outbox o
        WHERE hashtextextended(o.destination, 0) = lane.h AND least(o.attempts, 1) = 1
          AND o.next_at <= now()
        ORDER BY o.next_at LIMIT lane.tried_max)
      UNION ALL
      (SELECT o.id, o.destination, o.key, o.payload, o.headers, o.attempts
         FROM (SELECT * FROM tickwright.outbox o
                WHERE hashtextextended(o.destination, 0) = lane.h AND least(o.attempts, 1) = 0 AND o.next_at <= now()
                ORDER BY o.next_at, o.id LIMIT $8) AS o
        WHERE (SELECT true FROM tickwright.outbox tried
                WHERE hashtextextended(tried.destination, 0) = lane.h AND least(tried.attempts, 1) = 1
                  AND hashtextextended(tried.key, 0) = hashtextextended(o.key, 0) AND tried.key = o.key LIMIT 1) IS NULL
        ORDER BY o.next_at, o.id LIMIT lane.rows_max)
      UNION ALL
      (SELECT o.id, o.destination, o.key, o.payload, o.headers, o.attempts
         FROM tickwright.outbox o
        WHERE hashtextextended(o.destination, 0) = lane.h AND least(o.attempts, 1) = 1
          AND o.next_at <= now()
        ORDER BY o.next_at LIMIT lane.tried_last)
      LIMIT lane.rows_max) AS r
   WHERE lane.h <> ALL ($2::bigint[])
), bounded AS (
  SELECT f.*, sum(tickwright.written_bytes(f.payload) + tickwright.written_bytes(f.headers)) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM found f
)
SELECT h, id, destination, key, payload::text, headers::text, attempts
  FROM bounded WHERE coalesce(bytes_before, 0) < $5::bigint
UNION ALL
SELECT (SELECT max(h) FROM walked), NULL, NULL, NULL, NULL, NULL, (SELECT count(*) FROM walked)::integer;

-- name: delete_sent
-- Delete messages that were accepted. In a transaction that has locked the relay's lease. Index: outbox_pkey.
DELETE FROM tickwright.outbox WHERE id = ANY ($1::bigint[]);

-- name: retry_later
-- Keep a refused or unknown message, with the same id, for a later attempt. Row $2[i] had $3[i] attempts before this one, so a repeated
-- write counts once. In a transaction that has locked the relay's lease. Index: outbox_pkey.
UPDATE tickwright.outbox o
   SET attempts = o.attempts + 1, next_at = clock_timestamp() + make_interval(secs => u.wait_s),
       error_message = u.error, fence = $1
  FROM unnest($2::bigint[], $3::integer[], $4::float8[], $5::text[]) AS u (id, tries, wait_s, error)
 WHERE o.id = u.id AND o.id = ANY ($2::bigint[]) AND o.attempts = u.tries;

-- name: dead_letter
-- Dead-letter messages that were finally refused, or tried often enough. In a transaction that has locked the relay's lease. Index: outbox_pkey.
WITH gone AS (
  DELETE FROM tickwright.outbox WHERE id = ANY ($1::bigint[]) RETURNING *
)
INSERT INTO tickwright.outbox_dead (id, destination, key, payload, headers, created_at, attempts, error_message)
SELECT g.id, g.destination, g.key, g.payload, g.headers, g.created_at, g.attempts + 1, u.error
  FROM gone g JOIN unnest($1::bigint[], $2::text[]) AS u (id, error) ON u.id = g.id;

-- name: note_waiting
-- Write at a row, without an attempt, what it waits for. In a transaction that has locked the relay's lease. Index: outbox_pkey.
UPDATE tickwright.outbox SET error_message = $2, fence = $3 WHERE id = $1 AND error_message IS DISTINCT FROM $2;

-- name: lane_heads
-- The longest-waiting row of each destination, for alerts and metrics. It covers the destinations of the 10,000 oldest rows and the first 1,000 by
-- hash, which any role that may add rows can choose. It returns the 1,000 that wait longest, and whether there are more than 1,000 destinations.
-- Ids and the new rows of a lane are nearly in order of age. Tried rows are in order of their next try, so 10,000 of them are read, the same
-- number of each lane. A row that is older than all that is read of its lane comes after 10,000 that wait longer.
-- Indexes: outbox_pkey for the oldest and the answer; outbox_lane, a probe a lane and two a head.
WITH RECURSIVE walk AS (
  (SELECT hashtextextended(o.destination, 0) AS h FROM tickwright.outbox o ORDER BY 1 LIMIT 1)
  UNION ALL
  SELECT n.h FROM walk w CROSS JOIN LATERAL (
    SELECT hashtextextended(o.destination, 0) AS h FROM tickwright.outbox o
     WHERE hashtextextended(o.destination, 0) > w.h ORDER BY 1 LIMIT 1) AS n
), walked AS MATERIALIZED (
  SELECT h FROM walk LIMIT 1001
), oldest AS MATERIALIZED (
  SELECT hashtextextended(o.destination, 0) AS h, o.id FROM tickwright.outbox o ORDER BY o.id LIMIT 10000
), lane AS MATERIALIZED (
  SELECT h FROM walked UNION SELECT h FROM oldest
), head AS (
  SELECT min(r.id) AS id
    FROM (SELECT h, id FROM oldest
          UNION ALL
          SELECT lane.h, tried.id FROM lane CROSS JOIN LATERAL (
            SELECT o.id FROM tickwright.outbox o
             WHERE hashtextextended(o.destination, 0) = lane.h AND least(o.attempts, 1) = 1
             ORDER BY o.next_at LIMIT (SELECT greatest(1, 10000 / nullif(count(*), 0)) FROM lane)) AS tried
          UNION ALL
          SELECT lane.h, new.id FROM lane CROSS JOIN LATERAL (
            SELECT o.id FROM tickwright.outbox o
             WHERE hashtextextended(o.destination, 0) = lane.h AND least(o.attempts, 1) = 0
             ORDER BY o.next_at, o.id LIMIT 1) AS new) AS r
   GROUP BY r.h
)
SELECT o.destination, date_part('epoch', clock_timestamp() - o.created_at) AS age_s, o.error_message,
       (SELECT count(*) FROM walked) > 1000 AS cut
  FROM tickwright.outbox o
 WHERE o.id = ANY (ARRAY (SELECT id FROM head ORDER BY id LIMIT 1000))
 ORDER BY o.created_at;

-- name: lanes
-- The lanes with waiting rows, $1 at most, and whether a relay works. Index: outbox_lane, a probe a lane; job_config_pkey.
WITH RECURSIVE walk AS (
  (SELECT hashtextextended(o.destination, 0) AS h FROM tickwright.outbox o ORDER BY 1 LIMIT 1)
  UNION ALL
  SELECT n.h FROM walk w CROSS JOIN LATERAL (
    SELECT hashtextextended(o.destination, 0) AS h FROM tickwright.outbox o
     WHERE hashtextextended(o.destination, 0) > w.h ORDER BY 1 LIMIT 1) AS n
)
SELECT ARRAY (SELECT h FROM walk LIMIT $1) AS lanes,
       EXISTS (SELECT FROM tickwright.job_config WHERE job_name = $2 AND running AND lease_until > clock_timestamp()) AS relayed;

-- name: lane_standings
-- What waits in each of the lanes $1, new and tried before, of the first $2 rows of either kind. Index: outbox_lane.
SELECT coalesce(tried.destination, new.destination) AS destination, new.n AS new, tried.n AS tried,
       date_part('epoch', clock_timestamp() - least(new.since, tried.since)) AS oldest_s, coalesce(tried.attempts, 0) AS attempts,
       tried.next_at, coalesce(tried.error, new.error) AS error
  FROM unnest($1::bigint[]) AS lane (h)
 CROSS JOIN LATERAL (
   SELECT min(r.destination) AS destination, count(*) AS n, min(r.created_at) AS since, max(r.attempts) AS attempts,
          min(r.next_at) FILTER (WHERE isfinite(r.next_at)) AS next_at, (array_agg(r.error_message ORDER BY r.created_at, r.id))[1] AS error
     FROM (SELECT * FROM tickwright.outbox o
            WHERE hashtextextended(o.destination, 0) = lane.h AND least(o.attempts, 1) = 1 ORDER BY o.next_at LIMIT $2) AS r) AS tried
 CROSS JOIN LATERAL (
   SELECT min(r.destination) AS destination, count(*) AS n, min(r.created_at) AS since, max(r.error_message) AS error
     FROM (SELECT * FROM tickwright.outbox o
            WHERE hashtextextended(o.destination, 0) = lane.h AND least(o.attempts, 1) = 0 ORDER BY o.next_at, o.id LIMIT $2) AS r) AS new
 WHERE coalesce(tried.destination, new.destination) IS NOT NULL;

-- name: retry_now
-- Make rows of a destination that wait for their next try due at once, $2 at most. Index: outbox_lane.
UPDATE tickwright.outbox SET next_at = clock_timestamp()
 WHERE id = ANY (ARRAY (
   SELECT o.id FROM tickwright.outbox o
    WHERE hashtextextended(o.destination, 0) = hashtextextended($1, 0) AND least(o.attempts, 1) = 1 AND o.next_at > clock_timestamp()
      AND o.destination = $1 ORDER BY o.next_at LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING id;

-- name: discard
-- Dead-letter a message, by an operator, who can requeue it. A relay still sends one that it is sending now. Index: outbox_pkey.
WITH gone AS (
  DELETE FROM tickwright.outbox WHERE id = $1 RETURNING *
)
INSERT INTO tickwright.outbox_dead (id, destination, key, payload, headers, created_at, attempts, error_message)
SELECT id, destination, key, payload, headers, created_at, attempts, $2::text FROM gone
RETURNING id, destination, key, created_at, attempts;

-- name: reserve_prefixes
-- Record the prefixes of our own exchanges and topics: only roles that run Tickwright send to them. Index: reserved_prefixes_pkey.
INSERT INTO tickwright.reserved_prefixes (prefix) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING;
