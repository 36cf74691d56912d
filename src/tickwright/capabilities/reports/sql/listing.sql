-- name: get_report
-- One record with its progress. Index: reports_pkey, report_parts_pkey.
SELECT r.id, r.source, r.type, r.query_key, r.conditions::text AS conditions, r.department, r.requester, r.status,
       coalesce(r.plan ->> 'format', 'csv') AS format, r.notify, r.stage, p.stages, p.parts_done, p.parts_expected, r.checks, r.restarts,
       r.deadline_at, r.file_address, r.rows, r.bytes, r.checksum, r.manifest::text AS manifest, r.error_code, r.error, r.created_at,
       r.started_at, r.last_part_at, r.finished_at, r.file_expires_at, r.nonce,
       CASE WHEN r.file_key IS NOT NULL AND r.file_expires_at > clock_timestamp() THEN '/v1/reports/' || r.id || '/file' END AS file
  FROM tickwright.reports r
 CROSS JOIN LATERAL (
   SELECT coalesce(max(q.stage), 1) AS stages, count(*) FILTER (WHERE q.state = 'done') AS parts_done, count(*) AS parts_expected
     FROM tickwright.report_parts q WHERE q.report_id = r.id) AS p
 WHERE r.id = $1;

-- name: get_parts
-- The parts of a report with their workers, and when each stage began: with the report, or when the stage before ended.
-- Index: reports_pkey, report_parts_pkey, workers_pkey.
SELECT p.listener, p.stage, p.kind, p.required, p.state, p.rows, p.bytes, p.attempts, p.error, p.began_at, p.done_at, w.name AS worker,
       CASE WHEN p.state <> 'waiting' THEN
         coalesce((SELECT max(q.done_at) FROM tickwright.report_parts q WHERE q.report_id = p.report_id AND q.stage = p.stage - 1), r.created_at)
       END AS asked_at, clock_timestamp() AS now
  FROM tickwright.reports r
  JOIN tickwright.report_parts p ON p.report_id = r.id
  LEFT JOIN tickwright.workers w ON w.id = p.owner
 WHERE r.id = $1 ORDER BY p.stage, p.listener;

-- name: list_reports
-- A page of records before the id $1, newest first; filters: department $2, type $3, states $4, requester $7. Reads at most $6 of all records, or
-- of the requester's; last_id is the last record read, if there may be more. Index: reports_pkey or reports_requester, report_parts_pkey.
SELECT found.*, p.stages, p.parts_done, p.parts_expected, searched.last_id
  FROM (SELECT CASE WHEN $2::text IS NOT NULL OR $3::text IS NOT NULL OR $4::text[] IS NOT NULL THEN
                 coalesce((SELECT id FROM tickwright.reports WHERE $7::text IS NULL AND id < $1 ORDER BY id DESC OFFSET $6 - 1 LIMIT 1),
                          (SELECT id FROM tickwright.reports WHERE requester = $7 AND id < $1 ORDER BY id DESC OFFSET $6 - 1 LIMIT 1))
               END AS last_id) AS searched
  LEFT JOIN LATERAL (
    SELECT r.id, r.source, r.type, r.query_key, r.conditions::text AS conditions, r.department, r.requester, r.status,
           coalesce(r.plan ->> 'format', 'csv') AS format, r.notify, r.stage, r.checks, r.restarts, r.deadline_at, r.file_address, r.rows,
           r.bytes, r.checksum, r.error_code, r.error, r.created_at, r.started_at, r.last_part_at, r.finished_at, r.file_expires_at,
           CASE WHEN r.file_key IS NOT NULL AND r.file_expires_at > clock_timestamp() THEN '/v1/reports/' || r.id || '/file' END AS file
      FROM ((SELECT * FROM tickwright.reports WHERE $7::text IS NULL AND id < $1 ORDER BY id DESC LIMIT $6) UNION ALL
            (SELECT * FROM tickwright.reports WHERE requester = $7 AND id < $1 ORDER BY id DESC LIMIT $6)) AS r
     WHERE ($2::text IS NULL OR r.department = $2) AND ($3::text IS NULL OR r.type = $3)
       AND ($4::text[] IS NULL OR r.status = ANY ($4))
     ORDER BY r.id DESC LIMIT $5) AS found ON true
  LEFT JOIN LATERAL (
    SELECT coalesce(max(q.stage), 1) AS stages, count(*) FILTER (WHERE q.state = 'done') AS parts_done, count(*) AS parts_expected
      FROM tickwright.report_parts q WHERE q.report_id = found.id) AS p ON true
 ORDER BY found.id DESC;

-- name: recent_report
-- The newest finished report of a requester and query key that is at most $3 seconds old and has its file.
-- Index: reports_answers.
SELECT id, file_key, bytes FROM tickwright.reports
 WHERE requester = $1 AND query_key = $2 AND status = 'finished' AND finished_at >= clock_timestamp() - make_interval(secs => $3::float8)
   AND file_key IS NOT NULL AND file_expires_at > clock_timestamp()
 ORDER BY finished_at DESC LIMIT 1;

-- name: receiver_known
-- Whether a receiver exists. Index: alert_receivers_pkey.
SELECT EXISTS (SELECT FROM tickwright.alert_receivers WHERE name = $1);

-- name: report_file
-- The location and expiry of a report's file, and the secret that signs links. Index: reports_pkey, report_links_pkey.
SELECT r.id, r.type, r.status, r.error, r.file_key, r.rows, r.bytes, r.checksum, coalesce(r.plan ->> 'format', 'csv') AS format, r.file_expires_at,
       clock_timestamp() AS now, s.secret
  FROM tickwright.report_links s LEFT JOIN tickwright.reports r ON r.id = $1 WHERE s.id = 1;

-- name: service_part
-- One part and its report, for a delivery by a service. Index: reports_pkey, report_parts_pkey.
SELECT r.id AS report_id, r.nonce, r.type, r.status, r.epoch, r.stage AS report_stage, r.conditions::text AS conditions, r.feed::text AS feed,
       r.requester, r.deadline_at, r.plan::text AS plan, clock_timestamp() AS now, p.listener, p.stage, p.kind, p.required, p.state,
       p.rows, p.bytes, p.checksum, p.object_key, p.error
  FROM tickwright.reports r LEFT JOIN tickwright.report_parts p ON p.report_id = r.id AND p.listener = $2 WHERE r.id = $1;

-- name: explain_report
-- The record, and the number of live report listeners. Index: reports_pkey. Small: a row per process.
SELECT r.id, r.status, r.stage, r.epoch, r.restarts, r.tries, r.checks, r.owner IS NOT NULL AS held, r.step_at = 'epoch' AS waits_for_slot, r.check_at, r.deadline_at,
       r.error_code, r.error, r.created_at, r.finished_at, r.file_expires_at, r.file_key IS NOT NULL AS has_file,
       r.manifest -> 'missing' AS missing, r.plan::text AS plan, clock_timestamp() AS now,
       (SELECT count(*) FROM tickwright.workers w
         WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND 'report-listener' = ANY (w.roles)) AS listeners
  FROM tickwright.reports r WHERE r.id = $1;

-- name: explain_parts
-- Each part, its worker, and the number of live processes that can fetch it. Index: report_parts_pkey. Small: a row per process.
SELECT p.listener, p.stage, p.kind, p.required, p.state, p.served_by, p.attempts, p.error, p.due_at, p.began_at, p.rows, w.name AS worker,
       (SELECT count(*) FROM tickwright.workers v
         WHERE v.lost_at IS NULL AND v.lease_until > clock_timestamp() AND v.facts -> 'serves' ? p.served_by) AS able
  FROM tickwright.report_parts p LEFT JOIN tickwright.workers w ON w.id = p.owner
 WHERE p.report_id = $1 ORDER BY p.stage, p.listener;
