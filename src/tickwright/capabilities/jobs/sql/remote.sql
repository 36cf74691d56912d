-- name: register
-- Register a remote worker under a token that was never used before, with the lease $3, which its heartbeats extend; nothing where there are $6
-- that are alive. Those that were lost an hour ago are deleted, a few at a time: a client may register again and again. With $7 it makes calls of consumers, which are woken. Small: a row per session.
WITH gone AS (
  DELETE FROM tickwright.workers
   WHERE id = ANY (ARRAY (SELECT id FROM tickwright.workers
                           WHERE remote_lease IS NOT NULL AND lost_at < clock_timestamp() - interval '1 hour' LIMIT 100 FOR UPDATE SKIP LOCKED))
)
INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts, remote_secret, remote_lease)
SELECT nextval('tickwright.fence_seq'), $1, ARRAY['remote'], $2, clock_timestamp() + $3::interval, $4, $5, $3::interval
 WHERE $6 > (SELECT count(*) FROM tickwright.workers WHERE remote_lease IS NOT NULL AND lost_at IS NULL)
RETURNING id, CASE WHEN $7 THEN pg_notify('tickwright_call_ends', 'workers') END AS woken;

-- name: sessions
-- Remote sessions by their ids: the hash of the secret, the pool, and whether they are lost or asked to stop. Index: workers_pkey.
SELECT w.id, w.remote_secret, w.lost_at IS NOT NULL OR w.lease_until <= 'epoch' AS lost, w.drain_requested_at IS NOT NULL AS drains,
       w.claims_from, w.facts -> 'remote' ->> 'pool' AS pool, coalesce(w.facts -> 'remote' -> 'calls', '[]')::text AS calls, ARRAY (SELECT jsonb_array_elements_text(w.facts -> 'remote' -> 'types')) AS types
  FROM tickwright.workers w WHERE w.id = ANY ($1::bigint[]) AND w.remote_secret IS NOT NULL;

-- name: renew
-- Extend the leases of remote sessions, except lost ones; in the order of their ids, so that two calls cannot deadlock. Index: workers_pkey.
UPDATE tickwright.workers w
   SET lease_until = clock_timestamp() + w.remote_lease, seen_at = clock_timestamp()
 WHERE w.id = ANY (ARRAY (SELECT o.id FROM tickwright.workers o
                           WHERE o.id = ANY ($1::bigint[]) AND o.lost_at IS NULL AND o.lease_until > 'epoch' AND o.remote_lease IS NOT NULL
                           ORDER BY o.id FOR NO KEY UPDATE))
RETURNING w.id, w.drain_requested_at IS NOT NULL AS drains, w.remote_lease;

-- name: expire
-- End the lease of a session that leaves while another transaction has locked what it owns: another session declares it lost and reclaims
-- that. Index: workers_pkey.
UPDATE tickwright.workers SET lease_until = clock_timestamp() WHERE id = $1 AND lost_at IS NULL;

-- name: lock_held
-- Lock the attempts $2 of the sessions $1 with the fences $3, and return them; an attempt that is not held is missing. Rows that another session
-- has locked are returned as locked, because waiting for them would delay all others. After this, statements that are fenced by owner are also fenced by
-- attempt. counted: the session has places of this type. Indexes: scheduled_tasks_pkey, task_types_encrypted, type_grants_pkey.
WITH asked AS MATERIALIZED (
  SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS u (owner, id, fence)
), free AS MATERIALIZED (
  SELECT u.owner, u.id, u.fence, t.task_type, t.group_key, t.attempts, t.max_attempts, t.cancel_requested_at IS NOT NULL AS cancelled,
         EXISTS (SELECT FROM tickwright.task_types y WHERE y.name = t.task_type AND y.encrypted) AS encrypted
    FROM asked u JOIN ONLY tickwright.scheduled_tasks t ON t.id = u.id AND t.owner = u.owner AND t.fence = u.fence
   WHERE t.id = ANY ($2::bigint[])
     FOR UPDATE OF t SKIP LOCKED
)
SELECT f.*, false AS locked, EXISTS (SELECT FROM tickwright.type_grants g WHERE g.worker = f.owner AND g.task_type = f.task_type) AS counted
  FROM free f
UNION ALL
SELECT u.owner, u.id, u.fence, t.task_type, t.group_key, t.attempts, t.max_attempts, false, false, true, false
  FROM asked u JOIN ONLY tickwright.scheduled_tasks t ON t.id = u.id AND t.owner = u.owner AND t.fence = u.fence
 WHERE t.id = ANY ($2::bigint[]) AND NOT EXISTS (SELECT FROM free f WHERE f.id = u.id);

-- name: check_held
-- Of the attempts that remote workers say they run, those that must stop: lost to them, cancelled by a user, or longer under way than their
-- timeout and $4. Index: scheduled_tasks_pkey, one probe an attempt.
SELECT u.owner, u.id, u.fence,
       CASE WHEN t.id IS NULL THEN 'lost' WHEN t.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE 'timeout' END AS reason
  FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS u (owner, id, fence)
  LEFT JOIN ONLY tickwright.scheduled_tasks t ON t.id = u.id AND t.owner = u.owner AND t.fence = u.fence
  LEFT JOIN tickwright.task_types y ON y.name = t.task_type
 WHERE t.id IS NULL OR t.cancel_requested_at IS NOT NULL
    OR clock_timestamp() > t.started_at + coalesce(t.timeout_ms, y.timeout_ms) * interval '1 ms' + $4::interval;

-- name: report_progress
-- Write the progress of running attempts of the session $1, of encrypted types only envelopes. Fenced by owner and job fence. Indexes:
-- scheduled_tasks_pkey, task_types_encrypted.
UPDATE ONLY tickwright.scheduled_tasks t SET progress = u.progress, updated_at = clock_timestamp()
  FROM unnest($2::bigint[], $3::bigint[], $4::jsonb[]) AS u (id, fence, progress)
 WHERE t.id = u.id AND t.id = ANY ($2::bigint[]) AND t.owner = $1 AND t.fence = u.fence
   AND (tickwright.is_sealed(u.progress) OR NOT EXISTS (SELECT FROM tickwright.task_types y WHERE y.name = t.task_type AND y.encrypted))
RETURNING t.id;

-- name: encrypted_of
-- Those of the attempts of the session $1 whose types are encrypted. Indexes: scheduled_tasks_pkey, task_types_encrypted.
SELECT t.id FROM ONLY tickwright.scheduled_tasks t JOIN tickwright.task_types y ON y.name = t.task_type AND y.encrypted
 WHERE t.owner = $1 AND t.id = ANY ($2::bigint[]);

-- name: places_left
-- How many more attempts of a limited type may be held, NULL where it has no limit any more; after lock_limited (shared_limits.sql). Index:
-- type_grants_pkey.
SELECT t.concurrency - coalesce((SELECT sum(g.granted) FROM tickwright.type_grants g JOIN tickwright.workers w ON w.id = g.worker AND w.lost_at IS NULL
                                  WHERE g.task_type = $1), 0)::integer
  FROM tickwright.task_types t WHERE t.name = $1;

-- name: take_places
-- Count $3 attempts of a limited type for a remote session, in the transaction that claimed them. Index: type_grants_pkey.
INSERT INTO tickwright.type_grants AS g (task_type, worker, granted, shares) VALUES ($1, $2, $3, false)
ON CONFLICT (task_type, worker) DO UPDATE SET granted = g.granted + excluded.granted;

-- name: free_places
-- Stop counting attempts that have ended, in the transaction that wrote their ends. Index: type_grants_pkey.
UPDATE tickwright.type_grants g SET granted = greatest(0, g.granted - u.ended)
  FROM unnest($1::bigint[], $2::text[], $3::integer[]) AS u (worker, task_type, ended)
 WHERE g.worker = u.worker AND g.task_type = u.task_type;

-- name: recount_places
-- Count the attempts of a session again, of which it knows the jobs $2, after the release of all others. Indexes: type_grants_pkey,
-- scheduled_tasks_pkey.
UPDATE tickwright.type_grants g
   SET granted = (SELECT count(*) FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY ($2::bigint[]) AND t.owner = $1 AND t.task_type = g.task_type)
 WHERE g.worker = $1;

-- name: leave
-- Delete a session that holds nothing any more. Index: workers_pkey.
DELETE FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL;
