-- name: worker
-- One worker session, and the age of its last heartbeat. Index: workers_pkey.
SELECT id, name, roles, version, started_at, seen_at, lease_until, drain_requested_at, lost_at, facts,
       lost_at IS NULL AND lease_until > clock_timestamp() AS alive, date_part('epoch', clock_timestamp() - seen_at) AS seen_ago_s
  FROM tickwright.workers WHERE id = $1;

-- name: held
-- The leases that the session $1 holds, at most $2. Small: a row per loop.
SELECT 'lease' AS kind, NULL::bigint AS id, job_name AS name, NULL::integer AS number, last_started_at AS since_at, version AS fence, NULL::bigint AS count
  FROM tickwright.job_config
 WHERE regexp_replace(owner, ':[^:]*$', '') = (SELECT name FROM tickwright.workers WHERE id = $1) AND running
   AND lease_until > clock_timestamp() ORDER BY job_name LIMIT $2;

-- name: leases
-- Every lease of a control loop, and the session of its owner, whose name starts with that of the session. Small: a row per loop and per
-- session.
SELECT j.job_name, j.slice_start, j.slice_end, j.last_started_at, j.last_completed_at, j.running, j.version, j.owner, j.lease_until,
       j.running AND j.lease_until > clock_timestamp() AS held,
       CASE WHEN j.running THEN date_part('epoch', clock_timestamp() - j.last_started_at) END AS age_s,
       (SELECT w.id FROM tickwright.workers w WHERE w.name = regexp_replace(j.owner, ':[^:]*$', '') AND w.lost_at IS NULL ORDER BY w.id DESC LIMIT 1) AS session
  FROM tickwright.job_config j ORDER BY j.job_name LIMIT 1000;

-- name: lease_known
-- Whether there is a lease of that name. Index: job_config_pkey.
SELECT EXISTS (SELECT FROM tickwright.job_config WHERE job_name = $1);

-- name: acknowledge
-- Store the operator and note of a firing alert. Index: alerts_pkey.
UPDATE tickwright.alerts SET acknowledged_at = clock_timestamp(), acknowledged_by = $2, acknowledged_note = $3
 WHERE id = $1 AND state = 'firing'
RETURNING id, rule, subject, severity, summary, state, fired_at, seen_at, resolved_at, facts, acknowledged_at, acknowledged_by, acknowledged_note;

-- name: alert_state
-- The state of an alert. Index: alerts_pkey.
SELECT state FROM tickwright.alerts WHERE id = $1;
