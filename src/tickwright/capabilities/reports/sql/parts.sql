-- name: claim_parts
-- Claim due parts that this process can fetch, as many as it has room for. $4 and $5: only this listener of this announced report, due or not yet.
-- Returns nothing for a lost session, or one that refuses claims of the number $6. $7: parts to pass over, as function or source and type, with a
-- space between. Index: report_parts_due, reports_pkey, workers_pkey.
WITH mine AS MATERIALIZED (
  SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL AND claims_from <= $6 FOR KEY SHARE
), found AS (
  SELECT c.report_id, c.listener
    FROM mine CROSS JOIN unnest($2::text[], $3::integer[]) AS can (served_by, room)
   CROSS JOIN LATERAL (
     SELECT p.report_id, p.listener FROM tickwright.report_parts p
      WHERE p.served_by = can.served_by AND p.state = 'due'
        AND (p.due_at <= now() OR (p.attempts = 0 AND p.report_id = $4)) AND ($4::bigint IS NULL OR (p.report_id = $4 AND p.listener = $5))
        AND p.served_by || ' ' || (SELECT r.type FROM tickwright.reports r WHERE r.id = p.report_id) <> ALL ($7::text[])
      ORDER BY p.due_at LIMIT can.room FOR UPDATE SKIP LOCKED) AS c
)
UPDATE tickwright.report_parts p
   SET state = 'running', owner = $1, fence = greatest(p.fence, (SELECT tickwright.fence_floor())) + 1, attempts = p.attempts + 1, began_at = clock_timestamp(), rows = 0, bytes = 0
  FROM found f JOIN tickwright.reports r ON r.id = f.report_id
 WHERE p.report_id = f.report_id AND p.listener = f.listener AND p.epoch = r.epoch AND p.stage = r.stage
   AND r.status IN ('pending', 'querying')
RETURNING p.report_id, p.listener, p.stage, p.kind, p.served_by, p.epoch, p.fence, p.attempts, r.type, r.status, r.conditions::text,
          r.feed::text, r.plan::text, r.requester, r.deadline_at, r.nonce;

-- name: next_part_in
-- Seconds until a part that this process can fetch is due; NULL if none is. Index: report_parts_due.
SELECT min(first.in_s)::float8
  FROM unnest($1::text[]) AS mine (served_by)
 CROSS JOIN LATERAL (
   SELECT extract(epoch FROM p.due_at - clock_timestamp()) AS in_s FROM tickwright.report_parts p
    WHERE p.served_by = mine.served_by AND p.state = 'due' ORDER BY p.due_at LIMIT 1) AS first;

-- name: confirm_parts
-- Write the rows so far; a part that is not returned has another owner. Index: report_parts_pkey, or report_parts_owner.
UPDATE tickwright.report_parts p SET rows = u.rows
  FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[]) AS u (report_id, listener, fence, rows)
 WHERE p.report_id = u.report_id AND p.listener = u.listener AND p.fence = u.fence AND p.owner = $5
RETURNING p.report_id, p.listener;

-- name: finish_part
-- Finish a part under its claim. After lock_report. Index: report_parts_pkey.
UPDATE tickwright.report_parts
   SET state = 'done', owner = NULL, done_at = clock_timestamp(), rows = $6, bytes = $7, checksum = $8, columns = $9::jsonb, place = $10,
       object_key = $11, error = NULL
 WHERE report_id = $1 AND listener = $2 AND epoch = $3 AND fence = $4 AND owner = $5
RETURNING listener;

-- name: deliver_part
-- Finish a service's part, which has no claim; the first delivery counts. After lock_report. Index: report_parts_pkey.
UPDATE tickwright.report_parts
   SET state = 'done', owner = NULL, fence = fence + 1, attempts = attempts + 1, began_at = coalesce(began_at, $4), done_at = clock_timestamp(),
       rows = $5, bytes = $6, checksum = $7, columns = $8::jsonb, place = $9, object_key = $10, error = NULL
 WHERE report_id = $1 AND listener = $2 AND epoch = $3 AND kind = 'service' AND state = 'due'
RETURNING listener;

-- name: put_data
-- Store a small part that is not in Redis, in the transaction that finishes it. Index: report_data_pkey.
INSERT INTO tickwright.report_data (report_id, listener, epoch, data) VALUES ($1, $2, $3, $4)
ON CONFLICT (report_id, listener) DO UPDATE SET epoch = excluded.epoch, data = excluded.data;

-- name: get_data
-- The stored rows of a part. Index: report_data_pkey.
SELECT data FROM tickwright.report_data WHERE report_id = $1 AND listener = $2 AND epoch = $3;

-- name: fail_part
-- Fail an attempt: due again after $7 seconds, or failed for good if that is NULL. After lock_report. Index: report_parts_pkey.
UPDATE tickwright.report_parts
   SET state = CASE WHEN $7::float8 IS NULL THEN 'failed' ELSE 'due' END, owner = NULL, error = $6,
       due_at = clock_timestamp() + make_interval(secs => coalesce($7::float8, 0))
 WHERE report_id = $1 AND listener = $2 AND epoch = $3 AND fence = $4 AND owner = $5
RETURNING state;

-- name: refuse_part
-- Fail a part that its service cannot deliver. After lock_report. Index: report_parts_pkey.
UPDATE tickwright.report_parts SET state = 'failed', fence = fence + 1, attempts = attempts + 1, error = $4
 WHERE report_id = $1 AND listener = $2 AND epoch = $3 AND kind = 'service' AND state = 'due'
RETURNING listener;

-- name: release_part
-- Release a part and uncount its attempt. Index: report_parts_pkey.
UPDATE tickwright.report_parts SET state = 'due', owner = NULL, attempts = attempts - 1, due_at = clock_timestamp()
 WHERE report_id = $1 AND listener = $2 AND fence = $3 AND owner = $4 RETURNING listener;

-- name: reclaim_parts
-- Release the parts of lost sessions, in the transaction that declares them lost. The attempt counts, so that a part that kills its process
-- fails in the end. Index: report_parts_owner.
UPDATE tickwright.report_parts
   SET state = 'due', owner = NULL, due_at = clock_timestamp(), error = 'the process that ran it was lost'
 WHERE owner = ANY ($1::bigint[]);

-- name: release_unknown_parts
-- Release parts that the session $1 owns and does not know of: the answer to a claim was lost, so nothing was begun and no attempt is counted.
-- Known is the listener $3[i] of the report $2[i] at the fence $4[i]. After refuse_claims. Index: report_parts_owner.
WITH back AS (
  UPDATE tickwright.report_parts p
     SET state = 'due', owner = NULL, attempts = attempts - 1, due_at = clock_timestamp()
   WHERE p.owner = $1
     AND NOT EXISTS (SELECT FROM unnest($2::bigint[], $3::text[], $4::bigint[]) AS u (report_id, listener, fence)
                      WHERE u.report_id = p.report_id AND u.listener = p.listener AND u.fence = p.fence)
  RETURNING 1
)
SELECT count(*) FROM back;

-- name: queries_on
-- The listeners that are queries on one of these sources. Small: a row per type.
SELECT DISTINCT one ->> 'name' AS listener
  FROM tickwright.report_types t CROSS JOIN jsonb_array_elements(t.definition -> 'listeners') AS one
 WHERE one ->> 'kind' = 'sql' AND one ->> 'source' = ANY ($1::text[]) ORDER BY 1 LIMIT 1000;

-- name: services
-- The listeners that are services; Tickwright makes their queues, so that no announcement is lost before they connect. Small: a row per type.
SELECT DISTINCT one ->> 'name' AS listener
  FROM tickwright.report_types t CROSS JOIN jsonb_array_elements(t.definition -> 'listeners') AS one
 WHERE one ->> 'kind' = 'service' ORDER BY 1 LIMIT 1000;

-- name: held
-- What the session $1 holds, at most $2 rows of each kind. Indexes: reports_owner, report_parts_owner.
(SELECT 'report' AS kind, id, type AS name, NULL::integer AS number, started_at AS since_at, fence, NULL::bigint AS count
   FROM tickwright.reports WHERE owner = $1 LIMIT $2)
UNION ALL
(SELECT 'part', report_id, listener, NULL, began_at, fence, rows FROM tickwright.report_parts WHERE owner = $1 LIMIT $2);

-- name: owned
-- Whether the session $1 owns a step or a part of a report. Indexes: reports_owner, report_parts_owner.
SELECT EXISTS (SELECT FROM tickwright.report_parts WHERE owner = $1) OR EXISTS (SELECT FROM tickwright.reports WHERE owner = $1);
