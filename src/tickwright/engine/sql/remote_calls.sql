-- name: hand_over
-- Hand over calls of the session $1, its number $2[i]: of kind $3[i], for the pool $4[i] and the name $5[i], with the payload $6[i], so long at most for the call ($7[i])
-- and for a worker to claim it ($8[i], both in ms). Nothing for a session that is lost. Returns the numbers. Wakes the processes in which claims wait. Index: workers_pkey.
WITH mine AS MATERIALIZED (
  SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL FOR KEY SHARE
), added AS (
  INSERT INTO tickwright.remote_calls (caller, ref, kind, pool, name, payload, timeout_ms, patience_ms, deadline_at)
  SELECT mine.id, u.ref, u.kind, u.pool, u.name, u.payload, u.timeout_ms, u.patience_ms, clock_timestamp() + u.patience_ms * interval '1 ms'
    FROM mine CROSS JOIN unnest($2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::integer[], $8::integer[])
      AS u (ref, kind, pool, name, payload, timeout_ms, patience_ms)
  RETURNING ref
)
SELECT ref, CASE WHEN row_number() OVER () = 1 THEN pg_notify('tickwright_calls', '') END AS woken FROM added;

-- name: take_ended
-- Take the calls of the session $1 that have ended, by an answer or at their deadlines, and those among its numbers $2 whose rows are gone, as after a crash of the
-- server. Index: remote_calls_caller.
WITH ended AS (
  DELETE FROM tickwright.remote_calls
   WHERE caller = $1 AND (outcome IS NOT NULL OR deadline_at <= clock_timestamp())
  RETURNING ref, coalesce(outcome, CASE WHEN owner IS NULL THEN 'unclaimed' ELSE 'timeout' END) AS outcome, answer
)
SELECT ref, outcome, answer FROM ended
UNION ALL
SELECT u.ref, 'gone', NULL FROM unnest($2::bigint[]) AS u (ref)
 WHERE NOT EXISTS (SELECT FROM tickwright.remote_calls c WHERE c.caller = $1 AND c.ref = u.ref);

-- name: withdraw
-- Delete calls $2 of the session $1, which no longer waits for them: what their workers answer finds no row. Index: remote_calls_caller.
DELETE FROM tickwright.remote_calls WHERE caller = $1 AND ref = ANY ($2::bigint[]);

-- name: served
-- What live remote workers are registered for: kind, pool and name. Small: a row per session.
SELECT DISTINCT call ->> 0 AS kind, w.facts -> 'remote' ->> 'pool' AS pool, call ->> 1 AS name
  FROM tickwright.workers w CROSS JOIN LATERAL jsonb_array_elements(w.facts -> 'remote' -> 'calls') AS call
 WHERE w.remote_lease IS NOT NULL AND w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND w.drain_requested_at IS NULL;

-- name: claim
-- Claim at most $6 waiting calls for the remote session $1, the oldest first, of the pool $3 and of the kinds $4[i] with the names $5[i], up to about $7 characters
-- of payload. Nothing for a session that is lost or refuses claims of the number $2. $8: how much longer than its timeout a call may take until the server ends it.
-- Indexes: workers_pkey, remote_calls_waiting, one scan per name.
WITH session AS MATERIALIZED (
  SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL AND claims_from <= $2 FOR KEY SHARE
), found AS MATERIALIZED (
  SELECT c.id, c.size
    FROM session CROSS JOIN unnest($4::text[], $5::text[]) AS u (kind, name)
   CROSS JOIN LATERAL (
     SELECT w.id, length(w.payload) AS size FROM tickwright.remote_calls w
      WHERE w.pool = $3 AND w.kind = u.kind AND w.name = u.name AND w.owner IS NULL AND w.outcome IS NULL AND w.deadline_at > clock_timestamp()
      ORDER BY w.id LIMIT $6 FOR UPDATE SKIP LOCKED) AS c
   ORDER BY c.id LIMIT $6
), fits AS (
  SELECT s.id FROM (SELECT id, sum(size) OVER (ORDER BY id) - size AS before FROM found) AS s WHERE s.before < $7
)
UPDATE tickwright.remote_calls c
   SET owner = $1, fence = greatest(c.fence, (SELECT tickwright.fence_floor())) + 1, began_at = clock_timestamp(), progress = NULL,
       deadline_at = clock_timestamp() + c.timeout_ms * interval '1 ms' + $8::interval
 WHERE c.id = ANY (ARRAY (SELECT id FROM fits))
RETURNING c.id, c.kind, c.name, c.payload, c.timeout_ms, c.fence;

-- name: end_calls
-- Write the outcomes $4[i] with the answers $5[i] of the calls $1[i], which the sessions $2[i] hold with the fences $3[i]; a call that is not held stays as it is and is not
-- returned. Wakes the callers. In the order of ids, so that two writes cannot deadlock. Index: remote_calls_pkey.
WITH held AS MATERIALIZED (
  SELECT c.id, u.outcome, u.answer
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[]) AS u (id, owner, fence, outcome, answer)
    JOIN tickwright.remote_calls c ON c.id = u.id AND c.owner = u.owner AND c.fence = u.fence
   WHERE c.id = ANY ($1::bigint[]) ORDER BY c.id FOR UPDATE OF c
), written AS (
  UPDATE tickwright.remote_calls c
     SET owner = NULL, outcome = h.outcome, answer = h.answer
    FROM held h WHERE c.id = h.id
  RETURNING c.id, c.caller
), told AS MATERIALIZED (
  SELECT pg_notify('tickwright_call_ends', caller::text) FROM (SELECT DISTINCT caller FROM written) AS callers
)
SELECT w.id FROM written w WHERE (SELECT count(*) FROM told) > 0;

-- name: release_calls
-- Let other workers claim calls that a remote session holds: those $3 of the session $1 with the fences $4, or with $2 all but these. Wakes the processes in which
-- claims wait. Indexes: remote_calls_owner, remote_calls_pkey.
WITH given AS MATERIALIZED (
  SELECT * FROM unnest($3::bigint[], $4::bigint[]) AS u (id, fence)
), held AS MATERIALIZED (
  SELECT c.id FROM tickwright.remote_calls c
   WHERE c.owner = $1 AND ($2 OR c.id = ANY ($3::bigint[]))
     AND EXISTS (SELECT FROM given g WHERE g.id = c.id AND g.fence = c.fence) <> $2
   ORDER BY c.id FOR UPDATE
), released AS (
  UPDATE tickwright.remote_calls c
     SET owner = NULL, deadline_at = clock_timestamp() + c.patience_ms * interval '1 ms'
    FROM held h WHERE c.id = h.id
  RETURNING c.id
)
SELECT id, CASE WHEN row_number() OVER () = 1 THEN pg_notify('tickwright_calls', '') END AS woken FROM released;

-- name: check_calls
-- Of the calls $2 that the session $1 says it makes, with the fences $3, those that it does not hold. Index: remote_calls_pkey.
SELECT u.id, u.fence FROM unnest($2::bigint[], $3::bigint[]) AS u (id, fence)
  LEFT JOIN tickwright.remote_calls c ON c.id = u.id AND c.owner = $1 AND c.fence = u.fence
 WHERE c.id IS NULL;

-- name: report_progress
-- Write the progress of calls of the session $1. Fenced by owner and fence. Index: remote_calls_pkey.
UPDATE tickwright.remote_calls c SET progress = u.progress
  FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS u (id, fence, progress)
 WHERE c.id = u.id AND c.id = ANY ($2::bigint[]) AND c.owner = $1 AND c.fence = u.fence
RETURNING c.id;

-- name: lose
-- In the transaction that declares the sessions $1 lost, or ends them: calls that they made end as lost, calls that they waited for are deleted, and so are those of callers
-- without a session. Indexes: remote_calls_owner, workers_pkey. Small: running calls.
WITH gone AS (
  DELETE FROM tickwright.remote_calls c
   WHERE c.caller = ANY ($1::bigint[]) OR NOT EXISTS (SELECT FROM tickwright.workers w WHERE w.id = c.caller AND w.lost_at IS NULL)
), lost AS (
  UPDATE tickwright.remote_calls c SET owner = NULL, outcome = 'lost'
   WHERE c.owner = ANY ($1::bigint[]) AND c.caller <> ALL ($1::bigint[])
     AND EXISTS (SELECT FROM tickwright.workers w WHERE w.id = c.caller AND w.lost_at IS NULL)
  RETURNING c.caller
)
SELECT pg_notify('tickwright_call_ends', caller::text) FROM (SELECT DISTINCT caller FROM lost) AS callers;

-- name: held
-- What the session $1 makes for consumers, at most $2 rows. Index: remote_calls_owner.
SELECT kind, id, name, NULL::integer AS number, began_at AS since_at, fence, NULL::bigint AS count
  FROM tickwright.remote_calls WHERE owner = $1 LIMIT $2;

-- name: list_calls
-- Running and waiting calls, at most $1, the oldest first: what a worker makes, how far it is, and when it ends at the latest. Index: remote_calls_pkey.
SELECT c.id, c.kind, c.pool, c.name, c.owner AS worker, w.name AS worker_name, c.began_at, c.deadline_at, c.progress, c.fence
  FROM tickwright.remote_calls c LEFT JOIN tickwright.workers w ON w.id = c.owner
 WHERE c.outcome IS NULL ORDER BY c.id LIMIT $1;
