-- name: take
-- Claim groups for session $1, those due longest first: at most $3[i] of partner $2[i], none before its second. It waits for no lock.
-- A session that was declared lost, or that refuses claims with the number $4, claims nothing. taken_at is the clock's instant, not
-- the transaction's, so two takes of one group by one session differ. Index: poll_queue_waiting, workers_pkey.
WITH mine AS MATERIALIZED (
  SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL AND claims_from <= $4 FOR KEY SHARE
), picked AS MATERIALIZED (
  SELECT q.seq
    FROM mine CROSS JOIN unnest($2::smallint[], $3::integer[]) AS room (partner_no, groups)
   CROSS JOIN LATERAL (
    SELECT w.seq FROM tickwright.poll_queue w
     WHERE w.partner_no = room.partner_no AND w.owner IS NULL AND w.due_at <= now()
     ORDER BY w.due_at, w.seq LIMIT room.groups FOR UPDATE SKIP LOCKED) AS q
)
UPDATE tickwright.poll_queue q SET owner = $1, taken_at = clock_timestamp()
 WHERE q.seq = ANY (ARRAY (SELECT seq FROM picked)) AND q.owner IS NULL
RETURNING q.seq, q.slot_id, q.due_at, q.partner_no, q.ids, q.account_nos, q.external_ids, q.taken_at;

-- name: hold
-- Those of the groups $1 that still have the tokens $2 and the take instants $3, locked until the end of the transaction. Every write
-- of results is fenced by it. Rows are locked in order, so two holders cannot deadlock. Index: poll_queue_pkey.
SELECT q.seq, q.owner, q.taken_at
  FROM tickwright.poll_queue q
  JOIN unnest($1::bigint[], $2::bigint[], $3::timestamptz[]) AS u (seq, owner, taken_at)
    ON q.seq = u.seq AND q.owner = u.owner AND q.taken_at = u.taken_at
 WHERE q.seq = ANY ($1::bigint[]) ORDER BY q.seq FOR UPDATE OF q;

-- name: finish
-- Delete finished groups, in the transaction that holds them. Index: poll_queue_pkey.
DELETE FROM tickwright.poll_queue WHERE seq = ANY ($1::bigint[]);

-- name: release
-- Release those groups that still have the token and the take instant $3; a delayed release does not affect a later take.
-- Index: poll_queue_pkey.
UPDATE tickwright.poll_queue q SET owner = NULL, taken_at = NULL
  FROM unnest($1::bigint[], $2::bigint[], $3::timestamptz[]) AS u (seq, owner, taken_at)
 WHERE q.seq = u.seq AND q.owner = u.owner AND q.taken_at = u.taken_at AND q.seq = ANY ($1::bigint[]);

-- name: reclaim
-- Release the groups of lost sessions, in the transaction that declares them lost. Index: poll_queue_taken.
WITH back AS (
  UPDATE tickwright.poll_queue SET owner = NULL, taken_at = NULL WHERE owner = ANY ($1::bigint[]) RETURNING 1
)
SELECT count(*) FROM back;

-- name: orphans
-- Release groups with the token of a session that is lost or has no row. The transaction that ends a session releases its groups, so
-- these are of a session whose row was deleted otherwise, for example by plain SQL. Skips rows that a write of results has locked.
-- Index: poll_queue_taken, workers_pkey.
WITH gone AS MATERIALIZED (
  SELECT DISTINCT q.owner FROM tickwright.poll_queue q
   WHERE q.owner IS NOT NULL
     AND NOT EXISTS (SELECT FROM tickwright.workers w WHERE w.id = q.owner AND w.lost_at IS NULL)
), orphan AS MATERIALIZED (
  SELECT seq FROM tickwright.poll_queue
   WHERE owner IS NOT NULL AND owner = ANY (ARRAY (SELECT owner FROM gone)) FOR UPDATE SKIP LOCKED
), back AS (
  UPDATE tickwright.poll_queue SET owner = NULL, taken_at = NULL
   WHERE seq = ANY (ARRAY (SELECT seq FROM orphan)) RETURNING 1
)
SELECT count(*) FROM back;

-- name: release_unknown
-- Release groups with our token $1 that this process does not know; it knows $2, taken at $3. Their claim was committed, and its
-- answer was lost. Runs after refuse_claims. Index: poll_queue_taken.
WITH back AS (
  UPDATE tickwright.poll_queue q SET owner = NULL, taken_at = NULL
   WHERE q.owner = $1
     AND NOT EXISTS (SELECT FROM unnest($2::bigint[], $3::timestamptz[]) AS k (seq, taken_at)
                      WHERE k.seq = q.seq AND k.taken_at = q.taken_at)
  RETURNING 1
)
SELECT count(*) FROM back;

-- name: held
-- What the session $1 holds, at most $2 rows of each kind. Index: poll_queue_taken. Small: partitions.
(SELECT 'polls' AS kind, q.seq AS id, p.name, NULL::integer AS number, q.taken_at AS since_at, NULL::bigint AS fence,
        cardinality(q.ids)::bigint AS count
   FROM tickwright.poll_queue q LEFT JOIN tickwright.partners p ON p.partner_no = q.partner_no WHERE q.owner = $1 LIMIT $2)
UNION ALL
(SELECT 'partition', NULL, topic, partition, NULL, epoch, NULL FROM tickwright.poll_partitions WHERE owner = $1 LIMIT $2);

-- name: owned
-- Whether the session $1 owns polls of the queue. Index: poll_queue_taken.
SELECT EXISTS (SELECT FROM tickwright.poll_queue WHERE owner = $1);
