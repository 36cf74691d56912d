-- name: places
-- A fragment. The places of the session "me" in its groups: the number of others, how many of them come before it in the order of turns, and
-- how many come first in this round and in the next one. These ranks follow a hash of session and round, so that a session that comes or goes changes
-- few of them.
places AS (
  SELECT jsonb_object_agg(p.name, jsonb_build_array(p.others, p.before, p.rank, p.rank_next)) AS places
    FROM (SELECT u.name, count(o.id) AS others,
                 count(o.id) FILTER (WHERE hashint8extended(o.id, 0) < hashint8extended(me.id, 0)) AS before,
                 count(o.id) FILTER (WHERE hashint8extended(o.id, me.round) < hashint8extended(me.id, me.round)) AS rank,
                 count(o.id) FILTER (WHERE hashint8extended(o.id, me.round + 1) < hashint8extended(me.id, me.round + 1)) AS rank_next
            FROM me CROSS JOIN unnest(me.work_groups) AS u (name)
            LEFT JOIN tickwright.workers o ON u.name = ANY (o.work_groups) AND o.id <> me.id AND o.lost_at IS NULL AND o.lease_until > clock_timestamp()
           GROUP BY u.name, me.id, me.round) AS p
)

-- name: open_session
-- Register a worker session with a token that was never used before. Rounds of $7 seconds.
WITH me AS MATERIALIZED (
  SELECT nextval('tickwright.fence_seq') AS id, $6::text[] AS work_groups, floor(date_part('epoch', now()) / $7)::bigint AS round
), {places}
INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts, work_groups)
SELECT me.id, $1, $2, $3, clock_timestamp() + $4::interval, $5, me.work_groups FROM me
RETURNING id, date_part('epoch', clock_timestamp()) AS now_s, (SELECT places::text FROM places) AS places, (SELECT round FROM me) AS round;

-- name: renew_session
-- Extend a session's lease, unless it was declared lost or the timeline has changed; return when the next other lease expires, and its places in
-- rounds of $6 seconds. After a restore in place a token may be issued again: only the process whose name is in the row renews it. It reads no
-- other table, so that a lock on another one costs no session. Index: workers_pkey.
WITH me AS MATERIALIZED (
  SELECT $1::bigint AS id, $5::text[] AS work_groups, floor(date_part('epoch', now()) / $6)::bigint AS round
), {places}
UPDATE tickwright.workers w
   SET lease_until = clock_timestamp() + $2::interval, seen_at = clock_timestamp(), facts = $3, work_groups = $5
 WHERE w.id = $1 AND w.name = $4 AND w.lost_at IS NULL AND w.lease_until > 'epoch'
RETURNING w.drain_requested_at IS NOT NULL AS drain,
          date_part('epoch', clock_timestamp()) AS now_s, tickwright.timeline_is_known() AS timeline_known,
          (SELECT date_part('epoch', min(o.lease_until)) FROM tickwright.workers o
            WHERE o.lost_at IS NULL AND o.id <> $1) AS next_expiry_s,
          (SELECT places::text FROM places) AS places, (SELECT round FROM me) AS round;

-- name: hold_session
-- First statement of a heartbeat's work and of the release of unknown claims: the session is not lost, and cannot be declared lost before the
-- commit, because declare_lost locks FOR UPDATE. Renewals continue beside it, however long that work takes. Index: workers_pkey.
SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL FOR KEY SHARE;

-- name: refuse_claims
-- Claims of this session with a number below $2 take nothing from now on. Waits for those in progress: a renewal passes their FOR KEY SHARE,
-- FOR UPDATE does not. A transaction of its own, because a renewal waits for its lock. Index: workers_pkey.
WITH session AS MATERIALIZED (
  SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL FOR UPDATE
)
UPDATE tickwright.workers w SET claims_from = greatest(w.claims_from, $2) FROM session s WHERE w.id = s.id RETURNING w.id;

-- name: close_session
-- Leave: nothing is owned any more, or the same transaction releases it. Index: workers_pkey.
DELETE FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL RETURNING id;

-- name: declare_lost
-- Fence the sessions whose lease has expired. The same transaction reclaims what they claimed.
UPDATE tickwright.workers SET lost_at = clock_timestamp()
 WHERE id = ANY (ARRAY (SELECT id FROM tickwright.workers
                         WHERE lost_at IS NULL AND lease_until < clock_timestamp() FOR UPDATE SKIP LOCKED))
RETURNING id, name;

-- name: forget_grants
-- Free the grants of lost sessions. Index: type_grants_pkey.
DELETE FROM tickwright.type_grants WHERE worker = ANY ($1::bigint[]);

-- name: list_workers
-- Every session, newest first.
SELECT id, name, roles, version, started_at, seen_at, lease_until, drain_requested_at, lost_at, facts,
       lost_at IS NULL AND lease_until > clock_timestamp() AS alive
  FROM tickwright.workers ORDER BY id DESC LIMIT 1000;

-- name: request_drain
-- Ask a worker to finish what it runs and stop. Index: workers_pkey.
UPDATE tickwright.workers SET drain_requested_at = coalesce(drain_requested_at, clock_timestamp())
 WHERE id = $1 AND lost_at IS NULL RETURNING id;
