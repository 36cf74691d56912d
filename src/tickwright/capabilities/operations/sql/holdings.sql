-- name: worker
-- One worker session, and the age of its last heartbeat. Index: workers_pkey.
SELECT id, name, roles, version, started_at, seen_at, lease_until, drain_requested_at, lost_at, facts,
       lost_at IS NULL AND lease_until > clock_timestamp() AS alive, date_part('epoch', clock_timestamp() - seen_at) AS seen_ago_s
  FROM tickwright.workers WHERE id = $1;

-- name: holds
-- What a worker session holds ($1 its token, $2 its name), at most $3 of each kind; its jobs among the first $4 due ones of each claim
-- range. Indexes: scheduled_tasks_due, as a reclaim; execution_chunks_owner, executions_owner, reports_owner, report_parts_owner,
-- fanout_cursors_owner, poll_queue_taken. Small: leases, partitions.
WITH RECURSIVE {lane}
(SELECT 'job' AS kind, f.id, f.task_type::text AS name, NULL::integer AS number, f.started_at AS since_at, f.fence, f.attempts::bigint AS count
   FROM (SELECT due.* FROM (SELECT * FROM lane LIMIT 1000) AS lane CROSS JOIN LATERAL (
           SELECT t.id, t.task_type, t.started_at, t.fence, t.attempts, t.owner FROM ONLY tickwright.scheduled_tasks t
            WHERE t.task_type = lane.task_type AND t.priority = lane.priority AND coalesce(t.retry_at, t.execute_at) <= now() + interval '1 minute'
            ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT $4) AS due LIMIT 4 * $4) AS f
  WHERE f.owner = $1 LIMIT $3)
UNION ALL
(SELECT 'lease', NULL, job_name, NULL, last_started_at, version, NULL FROM tickwright.job_config
  WHERE regexp_replace(owner, ':[^:]*$', '') = $2 AND running AND lease_until > clock_timestamp() ORDER BY job_name LIMIT $3)
UNION ALL
(SELECT 'execution', e.id, b.name, NULL, e.started_at, e.fence, NULL
   FROM tickwright.executions e JOIN tickwright.batches b ON b.id = e.batch_id WHERE e.owner = $1 LIMIT $3)
UNION ALL
(SELECT 'chunk', c.execution_id, b.name, c.number, c.began_at, c.fence, c.members
   FROM tickwright.execution_chunks c JOIN tickwright.executions e ON e.id = c.execution_id JOIN tickwright.batches b ON b.id = e.batch_id
  WHERE c.owner = $1 LIMIT $3)
UNION ALL
(SELECT 'report', id, type, NULL, started_at, fence, NULL FROM tickwright.reports WHERE owner = $1 LIMIT $3)
UNION ALL
(SELECT 'part', report_id, listener, NULL, began_at, fence, rows FROM tickwright.report_parts WHERE owner = $1 LIMIT $3)
UNION ALL
(SELECT 'task', NULL, entity_code || '/' || task_type, NULL, running_since, fence, NULL FROM tickwright.fanout_cursors WHERE owner = $1 LIMIT $3)
UNION ALL
(SELECT 'polls', q.seq, p.name, NULL, q.taken_at, NULL, cardinality(q.ids)
   FROM tickwright.poll_queue q LEFT JOIN tickwright.partners p ON p.partner_no = q.partner_no WHERE q.owner = $1 LIMIT $3)
UNION ALL
(SELECT 'partition', NULL, topic, partition, NULL, epoch, NULL FROM tickwright.poll_partitions WHERE owner = $1 LIMIT $3);

-- name: owns
-- Whether a worker session owns anything that a reclaim would release. Indexes: execution_chunks_owner, executions_owner,
-- report_parts_owner, reports_owner, fanout_cursors_owner, poll_queue_taken; scheduled_tasks_due, as a reclaim.
WITH RECURSIVE {lane}, {claimable}
SELECT EXISTS (SELECT FROM tickwright.execution_chunks WHERE owner = $1)
    OR EXISTS (SELECT FROM tickwright.executions WHERE owner = $1)
    OR EXISTS (SELECT FROM tickwright.report_parts WHERE owner = $1)
    OR EXISTS (SELECT FROM tickwright.reports WHERE owner = $1)
    OR EXISTS (SELECT FROM tickwright.fanout_cursors WHERE owner = $1)
    OR EXISTS (SELECT FROM tickwright.poll_queue WHERE owner = $1)
    OR EXISTS (SELECT FROM claimable AS lane JOIN ONLY tickwright.scheduled_tasks t ON t.task_type = lane.task_type AND t.priority = lane.priority
                WHERE coalesce(t.retry_at, t.execute_at) <= now() + interval '1 minute' AND t.owner = $1);

-- name: leases
-- Every lease of a control loop, and the session of its owner, whose name starts with that of the session. Small: a row per loop and per
-- session.
SELECT j.job_name, j.slice_start, j.slice_end, j.last_started_at, j.last_completed_at, j.running, j.version, j.owner, j.lease_until,
       j.running AND j.lease_until > clock_timestamp() AS held,
       CASE WHEN j.running THEN date_part('epoch', clock_timestamp() - j.last_started_at) END AS age_s,
       (SELECT w.id FROM tickwright.workers w WHERE w.name = regexp_replace(j.owner, ':[^:]*$', '') AND w.lost_at IS NULL ORDER BY w.id DESC LIMIT 1) AS session
  FROM tickwright.job_config j ORDER BY j.job_name LIMIT 1000;

-- name: break_lease
-- Take a lease away from its holder, as break_lease in leases.sql. Index: job_config_pkey.
WITH held AS (
  SELECT job_name, owner, version FROM tickwright.job_config WHERE job_name = $1 AND running FOR UPDATE
)
UPDATE tickwright.job_config j SET running = false, owner = NULL, lease_until = NULL, version = j.version + 1
  FROM held WHERE j.job_name = held.job_name
RETURNING held.owner, held.version AS old_version, j.version;

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
