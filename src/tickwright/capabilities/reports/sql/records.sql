-- name: insert_report
-- Insert a record, unless the requester has an equal one under way. On the caller's connection, so every value has its type and JSON is text: a
-- codec of the caller would encode it again.
-- Index: reports_running.
INSERT INTO tickwright.reports
       (source, type, query_key, conditions, department, requester, plan, notify, deadline_at, check_at, step_at)
SELECT $1::text, $2::text, $3::text, CAST($4::text AS jsonb), $5::text, $6::text, CAST($7::text AS jsonb), $8::text, c.now + make_interval(secs => $9::float8),
       c.now + make_interval(secs => $10::float8), c.now + make_interval(secs => least($9::float8, $10::float8))
  FROM (SELECT clock_timestamp() AS now) AS c
ON CONFLICT (requester, query_key) WHERE status IN ('pending', 'querying', 'merging') DO NOTHING
RETURNING id, epoch, deadline_at;

-- name: running_report
-- The open record of an equal request of the same requester. Index: reports_running.
SELECT id FROM tickwright.reports
 WHERE requester = $1::text AND query_key = $2::text AND status IN ('pending', 'querying', 'merging');

-- name: insert_parts
-- Insert the parts of a record; the first stage is due after $7 seconds, announced or not.
INSERT INTO tickwright.report_parts (report_id, listener, stage, kind, served_by, required, state, due_at)
SELECT $1::bigint, u.listener, u.stage, u.kind, u.served_by, u.required, CASE u.stage WHEN 1 THEN 'due' ELSE 'waiting' END,
       clock_timestamp() + make_interval(secs => $7::float8)
  FROM unnest($2::text[], $3::smallint[], $4::text[], $5::text[], $6::boolean[]) AS u (listener, stage, kind, served_by, required);

-- name: notify
-- Wake listeners and supervisors after the commit.
SELECT pg_notify('tickwright_reports', '');

-- name: announce
-- Announce a stage: a message in the outbox, in the transaction that decides. On the caller's connection, as above.
INSERT INTO tickwright.outbox (destination, key, payload) VALUES ($1::text, $2::text, CAST($3::text AS jsonb));

-- name: lock_report
-- Serialize changes of a stage. Index: reports_pkey.
SELECT status, epoch, stage FROM tickwright.reports WHERE id = $1 FOR NO KEY UPDATE;

-- name: note_querying
-- Set reports to querying when their first part is claimed. Index: reports_pkey.
UPDATE tickwright.reports SET status = 'querying', started_at = clock_timestamp() WHERE id = ANY ($1::bigint[]) AND status = 'pending';

-- name: note_part_end
-- Make the next step due if no part of the stage is open or a required part has failed.
-- After lock_report, so that the last part detects that it is the last. Indexes: reports_pkey, report_parts_pkey.
UPDATE tickwright.reports r
   SET last_part_at = clock_timestamp(), status = CASE r.status WHEN 'pending' THEN 'querying' ELSE r.status END,
       started_at = coalesce(r.started_at, clock_timestamp()),
       step_at = CASE WHEN due.now THEN least(r.step_at, clock_timestamp()) ELSE r.step_at END
  FROM (SELECT count(*) FILTER (WHERE p.state NOT IN ('done', 'failed')) = 0
            OR count(*) FILTER (WHERE p.state = 'failed' AND p.required) > 0 AS now
          FROM tickwright.report_parts p WHERE p.report_id = $1 AND p.stage = $2) AS due
 WHERE r.id = $1
RETURNING due.now;

-- name: claim_steps
-- Claim due steps without an owner, oldest first; and one step that waits for a merge slot, of the type with the fewest of the used slots $4 (one
-- type per slot). $5 is the number of free slots; the last one is for a type without a slot. A step past its deadline needs no slot. While it is
-- owned, step_at is 'infinity': what makes it due meanwhile lowers step_at, and leave_step keeps that. Returns nothing for a lost session, or
-- one that refuses claims of the number $3. Index: reports_steps, workers_pkey.
WITH mine AS MATERIALIZED (
  SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL AND claims_from <= $3 FOR KEY SHARE
)
UPDATE tickwright.reports r
   SET owner = $1, fence = greatest(r.fence, (SELECT tickwright.fence_floor())) + 1, step_at = 'infinity'
 WHERE r.id = ANY (ARRAY(
         SELECT c.id FROM tickwright.reports c
          WHERE c.step_at > 'epoch' AND c.step_at <= now() AND c.owner IS NULL AND EXISTS (SELECT FROM mine)
          ORDER BY c.step_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED)
       || ARRAY(
         SELECT c.id FROM tickwright.reports c
          WHERE c.step_at = 'epoch' AND c.owner IS NULL AND EXISTS (SELECT FROM mine)
            AND ($5 > (c.type = ANY ($4::text[]))::integer OR c.deadline_at <= now())
          ORDER BY cardinality(array_positions($4::text[], c.type)), c.id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING r.id, r.type, r.status, r.stage, r.epoch, r.fence, r.restarts, r.tries, r.checks, r.conditions::text, r.requester, r.feed::text,
          r.plan::text, r.deadline_at, r.nonce, r.check_at <= clock_timestamp() AS check_due, r.deadline_at <= clock_timestamp() AS overdue,
          extract(epoch FROM r.deadline_at - clock_timestamp())::float8 AS left_s;

-- name: next_step_in
-- Seconds until a step is due, or a report that waits for a merge slot is past its deadline; NULL if none is. Index: reports_steps.
SELECT least(
  (SELECT extract(epoch FROM step_at - clock_timestamp())::float8
     FROM tickwright.reports WHERE step_at > 'epoch' AND step_at < 'infinity' AND owner IS NULL ORDER BY step_at LIMIT 1),
  (SELECT extract(epoch FROM min(deadline_at) - clock_timestamp())::float8
     FROM tickwright.reports WHERE step_at = 'epoch' AND owner IS NULL));

-- name: report_parts
-- All parts of a report. Index: report_parts_pkey.
SELECT listener, stage, required, state, attempts, rows, bytes, checksum, columns::text, place, object_key, error
  FROM tickwright.report_parts WHERE report_id = $1 ORDER BY stage, listener;

-- name: confirm_steps
-- The steps that the session $3 still owns. Index: reports_pkey, or reports_owner.
SELECT r.id, r.fence FROM tickwright.reports r JOIN unnest($1::bigint[], $2::bigint[]) AS u (id, fence) ON r.id = u.id AND r.fence = u.fence
 WHERE r.owner = $3;

-- name: waiting_steps
-- Reports whose step is due and waits for a slot, or is owned by this session; only this renews their life in Redis.
-- Index: reports_steps, reports_owner.
SELECT id, epoch, plan::text FROM tickwright.reports WHERE step_at <= clock_timestamp() OR owner = $1 LIMIT 10000;

-- name: leave_step
-- Release a step: due again after $4 seconds; if that is NULL, at the next check or when its stage is complete.
-- Index: reports_pkey.
UPDATE tickwright.reports
   SET owner = NULL, step_at = least(step_at, deadline_at, coalesce(clock_timestamp() + make_interval(secs => $4::float8), check_at))
 WHERE id = $1 AND fence = $2 AND owner = $3 RETURNING id;

-- name: wait_for_slot
-- Release a step whose parts are complete until a process has a merge slot for it, which 'epoch' marks. Index: reports_pkey.
UPDATE tickwright.reports SET step_at = 'epoch', owner = NULL WHERE id = $1 AND fence = $2 AND owner = $3 RETURNING id;

-- name: count_check
-- Count a delayed check that announces missing parts. Index: reports_pkey.
UPDATE tickwright.reports
   SET checks = checks + 1, check_at = clock_timestamp() + make_interval(secs => $4::float8)
 WHERE id = $1 AND fence = $2 AND owner = $3 RETURNING id;

-- name: begin_merge
-- Begin the merge of complete parts; late parts are dropped. Index: reports_pkey.
UPDATE tickwright.reports SET status = 'merging', tries = tries + 1 WHERE id = $1 AND fence = $2 AND owner = $3 AND epoch = $4
RETURNING id;

-- name: begin_try
-- Count another try of a step that merges. Index: reports_pkey.
UPDATE tickwright.reports SET tries = tries + 1 WHERE id = $1 AND fence = $2 AND owner = $3 RETURNING id;

-- name: drop_open_parts
-- Drop open parts; a running part finds its claim lost. Index: report_parts_pkey.
UPDATE tickwright.report_parts SET state = 'dropped', owner = NULL, fence = fence + 1
 WHERE report_id = $1 AND state IN ('waiting', 'due', 'running');

-- name: next_stage
-- Begin the next stage. Index: reports_pkey.
UPDATE tickwright.reports
   SET stage = stage + 1, feed = feed || $4::jsonb, checks = 0, tries = 0, owner = NULL,
       check_at = clock_timestamp() + make_interval(secs => $5::float8),
       step_at = least(deadline_at, clock_timestamp() + make_interval(secs => $5::float8))
 WHERE id = $1 AND fence = $2 AND owner = $3 RETURNING stage, feed::text;

-- name: open_stage
-- Make the parts of a stage due after $3 seconds, announced or not; drop open parts of the stages before.
-- Index: report_parts_pkey.
UPDATE tickwright.report_parts
   SET state = CASE WHEN stage = $2 THEN 'due' ELSE 'dropped' END, owner = NULL, fence = fence + 1,
       due_at = clock_timestamp() + make_interval(secs => $3::float8)
 WHERE report_id = $1 AND ((stage = $2 AND state = 'waiting') OR (stage < $2 AND state IN ('due', 'running')));

-- name: restart_report
-- Restart a report whose parts were lost: all are fetched again under the next epoch. Index: reports_pkey.
UPDATE tickwright.reports
   SET epoch = epoch + 1, restarts = restarts + 1, stage = 1, feed = '{}', checks = 0, tries = 0, status = 'querying', owner = NULL,
       check_at = clock_timestamp() + make_interval(secs => $4::float8),
       step_at = least(deadline_at, clock_timestamp() + make_interval(secs => $4::float8))
 WHERE id = $1 AND fence = $2 AND owner = $3 RETURNING epoch;

-- name: reset_parts
-- Reset all parts to the epoch $2, without fetched rows. Index: report_parts_pkey.
UPDATE tickwright.report_parts
   SET epoch = $2, state = CASE stage WHEN 1 THEN 'due' ELSE 'waiting' END, owner = NULL, fence = fence + 1, attempts = 0, rows = 0,
       bytes = 0, checksum = NULL, columns = NULL, place = NULL, object_key = NULL, began_at = NULL, done_at = NULL,
       due_at = clock_timestamp() + make_interval(secs => $3::float8)
 WHERE report_id = $1;

-- name: delete_data
-- Delete the rows of a report's parts stored in PostgreSQL. Index: report_data_pkey.
DELETE FROM tickwright.report_data WHERE report_id = $1;

-- name: finish_report
-- Finish a report whose file is uploaded. Index: reports_pkey.
UPDATE tickwright.reports
   SET status = 'finished', owner = NULL, step_at = NULL, finished_at = clock_timestamp(), file_address = $5, file_key = $6, rows = $7,
       bytes = $8, checksum = $9, manifest = $10::jsonb, file_expires_at = clock_timestamp() + make_interval(secs => $11::float8)
 WHERE id = $1 AND fence = $2 AND owner = $3 AND epoch = $4 AND status = 'merging'
RETURNING id;

-- name: fail_report
-- Fail a report, with the reason. Index: reports_pkey.
UPDATE tickwright.reports
   SET status = 'failed', owner = NULL, step_at = NULL, finished_at = clock_timestamp(), error_code = $4, error = $5, manifest = $6::jsonb
 WHERE id = $1 AND fence = $2 AND owner = $3
RETURNING id;

-- name: cancel_report
-- Cancel a report; every claim on it is lost. Index: reports_pkey.
UPDATE tickwright.reports
   SET status = 'cancelled', fence = fence + 1, owner = NULL, step_at = NULL, finished_at = clock_timestamp()
 WHERE id = $1 AND status IN ('pending', 'querying', 'merging')
RETURNING id;

-- name: notify_end
-- Notify the receiver of the end, in the transaction of the end; the message is signed when it is sent. Index: reports_pkey.
INSERT INTO tickwright.outbox (destination, key, payload)
SELECT 'alert:' || r.notify, 'report/' || r.id,
       jsonb_build_object('version', 1, 'event', 'report.' || r.status, 'report_id', r.id, 'type', r.type, 'source', r.source,
                          'requester', r.requester, 'department', r.department, 'query_key', r.query_key, 'status', r.status,
                          'rows', r.rows, 'bytes', r.bytes, 'checksum', r.checksum, 'error_code', r.error_code, 'error', r.error,
                          'missing', coalesce(r.manifest -> 'missing', '[]'), 'file', CASE r.status WHEN 'finished' THEN '/v1/reports/' || r.id || '/file' END,
                          'created_at', r.created_at, 'finished_at', r.finished_at)
  FROM tickwright.reports r WHERE r.id = $1 AND r.notify IS NOT NULL;

-- name: release_unknown_steps
-- Release steps that the session $1 owns and does not know of: the answer to a claim was lost. Known is the report $2[i] at the fence $3[i].
-- After refuse_claims. Index: reports_owner.
WITH back AS (
  UPDATE tickwright.reports r SET owner = NULL, step_at = least(step_at, clock_timestamp())
   WHERE r.owner = $1
     AND NOT EXISTS (SELECT FROM unnest($2::bigint[], $3::bigint[]) AS u (id, fence) WHERE u.id = r.id AND u.fence = r.fence)
  RETURNING 1
)
SELECT count(*) FROM back;

-- name: reclaim_steps
-- Release the steps of lost sessions, in the transaction that declares them lost. Index: reports_owner.
UPDATE tickwright.reports SET owner = NULL, step_at = least(step_at, clock_timestamp()) WHERE owner = ANY ($1::bigint[]);
