-- name: ensure_day
-- Create the history table of a day, $1 days from today. An insert into a missing table would fail.
SELECT tickwright.ensure_history(clock_timestamp() + make_interval(days => $1));

-- name: old_days
-- History tables whose day ended longer than $1 ago.
SELECT c.relname
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'tickwright.scheduled_tasks'::regclass AND c.relname ~ '^scheduled_tasks_[0-9]{8}$'
   AND to_date(right(c.relname, 8), 'YYYYMMDD') + 1 < (clock_timestamp() - $1::interval) AT TIME ZONE 'UTC'
 ORDER BY c.relname;

-- name: bound_lock
-- Bound the wait for a lock to $1, so that retention never blocks traffic; the next round tries again.
SELECT set_config('lock_timeout', $1, true);

-- name: is_day_in_use
-- Whether a job in a history table finished less than $1 ago: a worker with a late clock, or of an earlier release, wrote it there. {name}
-- comes from old_days. It does not scan the day: it reads the jobs with the highest ids (the primary key) and the last thousand pages,
-- where new rows are.
SELECT EXISTS (SELECT FROM (SELECT completed_at FROM ONLY tickwright.{name} ORDER BY id DESC LIMIT 1000) AS highest
                WHERE completed_at > clock_timestamp() - $1::interval)
    OR EXISTS (SELECT FROM ONLY tickwright.{name}
                WHERE ctid >= (SELECT format('(%s,0)', greatest(pg_relation_size('tickwright.{name}') / current_setting('block_size')::bigint - 1000, 0))::tid)
                  AND completed_at > clock_timestamp() - $1::interval);

-- name: lock_day
-- Lock a history table against readers and writers: nothing changes between the last check and the drop.
LOCK TABLE tickwright.{name} IN ACCESS EXCLUSIVE MODE;

-- name: drop_day
-- Drop a history table; {name} comes from old_days.
DROP TABLE tickwright.{name};

-- name: delete_dead_jobs
-- Delete at most $2 dead letters that failed longer than $1 ago, except those that another session has locked, and those behind which an ordered group has
-- stopped: it would go on. Indexes: scheduled_tasks_dead_at, job_groups_pkey.
DELETE FROM tickwright.scheduled_tasks_dead
 WHERE id = ANY (ARRAY (SELECT d.id FROM tickwright.scheduled_tasks_dead d
                         WHERE d.completed_at < clock_timestamp() - $1::interval
                           AND NOT EXISTS (SELECT FROM tickwright.job_groups g WHERE g.task_type = d.task_type AND g.group_key = d.group_key AND g.stopped_by = d.id)
                         ORDER BY d.completed_at LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: delete_keys
-- Delete at most $2 idempotency keys whose job ended longer than $1 ago. Their age counts from the end of the job; an end within an hour of
-- the last age does not change it. Index: job_keys_age, then scheduled_tasks_pkey.
DELETE FROM tickwright.job_keys
 WHERE key = ANY (ARRAY (SELECT k.key FROM tickwright.job_keys k
                          WHERE k.created_at < clock_timestamp() - $1::interval - interval '1 hour'
                            AND NOT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t WHERE t.id = k.job_id)
                          ORDER BY k.created_at LIMIT $2))
   AND created_at < clock_timestamp() - $1::interval - interval '1 hour';

-- name: delete_uniques
-- Delete at most $2 rows of unique arguments that were taken longer than $1 ago and that no job holds any more, except those that another session has locked. Index:
-- job_uniques_age, then scheduled_tasks_pkey and job_unique_ends_pkey.
DELETE FROM tickwright.job_uniques
 WHERE digest = ANY (ARRAY (SELECT u.digest FROM tickwright.job_uniques u
                             WHERE u.held_from < clock_timestamp() - $1::interval
                               AND NOT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t WHERE t.id = u.job_id)
                               AND NOT EXISTS (SELECT FROM tickwright.job_unique_ends e WHERE e.job_id = u.job_id)
                             ORDER BY u.held_from LIMIT $2 FOR UPDATE OF u SKIP LOCKED));

-- name: delete_unique_ends
-- Delete at most $2 ends of unique jobs whose hold has ended $1 ago. Index: job_unique_ends_until.
DELETE FROM tickwright.job_unique_ends
 WHERE job_id = ANY (ARRAY (SELECT e.job_id FROM tickwright.job_unique_ends e
                             WHERE e.until < clock_timestamp() - $1::interval ORDER BY e.until LIMIT $2 FOR UPDATE SKIP LOCKED));

-- name: return_stuck
-- Release jobs that a user's program set to processing, without a lease, and has not touched for $1: back to pending, with the attempt
-- counted, or failed when it was the last. Also jobs of lost sessions whose rows were locked at the reclaim; their claims have counted the attempt,
-- unless it is a last one that did not begin. And jobs that a live remote worker holds for a minute longer than their timeout: it does not name them in
-- its heartbeats, which would end them. At most $2. Index: scheduled_tasks_due, the due part of each claim range.
WITH RECURSIVE {claim_range}, {claimable}, stuck AS MATERIALIZED (
  SELECT s.id, s.counted
    FROM claimable AS claim_range CROSS JOIN LATERAL (
      SELECT t.id, CASE WHEN t.owner IS NULL THEN 1 WHEN t.started_at IS NULL THEN -1 ELSE 0 END AS counted FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority
         AND coalesce(t.retry_at, t.execute_at) <= now()
         AND t.status = 'processing' AND t.updated_at < clock_timestamp() - $1::interval
         AND NOT EXISTS (SELECT FROM tickwright.workers w
                          WHERE w.id = t.owner AND w.lost_at IS NULL
                            AND (w.remote_lease IS NULL OR clock_timestamp() < coalesce(t.started_at, t.updated_at) + interval '1 minute' + coalesce(t.timeout_ms,
                                 (SELECT y.timeout_ms FROM tickwright.task_types y WHERE y.name = t.task_type), 0) * interval '1 ms'))
       ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT $2 FOR UPDATE SKIP LOCKED) AS s
   LIMIT $2
)
UPDATE ONLY tickwright.scheduled_tasks t
   SET status = CASE WHEN t.attempts + stuck.counted >= t.max_attempts THEN 'failed' ELSE 'pending' END,
       attempts = t.attempts + stuck.counted, fence = greatest(t.fence, t.attempts + 1), owner = NULL, updated_at = clock_timestamp(),
       error_message = CASE WHEN t.owner IS NULL THEN 'stuck: set to processing without an owner and not touched since'
                            WHEN EXISTS (SELECT FROM tickwright.workers w WHERE w.id = t.owner AND w.lost_at IS NULL)
                            THEN 'timeout: its remote worker held it for longer and did not name it in its heartbeats'
                            ELSE 'lost: its worker stopped without releasing it' END
  FROM stuck WHERE t.id = stuck.id AND t.id = ANY (ARRAY (SELECT id FROM stuck)) AND t.status = 'processing'
RETURNING t.id, t.status;

-- name: keep_results
-- Keep the results of a day of jobs whose workflows still run, before its table is dropped: a later job may have them as arguments. {name} comes from old_days.
-- Indexes: workflows_running, workflow_nodes_pkey, the primary key of the day.
UPDATE tickwright.workflow_nodes n SET result = kept.result
  FROM tickwright.workflows w
 CROSS JOIN LATERAL (SELECT o.id FROM tickwright.workflow_nodes o
                      WHERE o.id > w.id AND o.id <= w.last_id AND o.root_id = w.id AND o.status = 'completed' AND o.result IS NULL OFFSET 0) AS done
 CROSS JOIN LATERAL (SELECT t.result FROM ONLY tickwright.{name} t WHERE t.id = done.id AND t.result IS NOT NULL LIMIT 1) AS kept
 WHERE w.ended_at IS NULL AND w.parent_id IS NULL AND n.id = done.id;

-- name: delete_workflow_nodes
-- Delete at most $2 nodes of workflows that ended longer than $1 ago, and what they waited for. Indexes: workflows_ended, workflow_nodes_pkey,
-- workflow_edges_successor.
WITH old AS MATERIALIZED (
  SELECT n.id
    FROM (SELECT w.id, w.last_id FROM tickwright.workflows w
           WHERE w.ended_at < clock_timestamp() - $1::interval AND w.parent_id IS NULL
             AND EXISTS (SELECT FROM tickwright.workflow_nodes o WHERE o.root_id = w.id) ORDER BY w.ended_at LIMIT 100) AS w
   CROSS JOIN LATERAL (SELECT o.id FROM tickwright.workflow_nodes o
                        WHERE o.id > w.id AND o.id <= w.last_id AND o.root_id = w.id ORDER BY o.id LIMIT $2) AS n
   LIMIT $2
), edges AS (
  DELETE FROM tickwright.workflow_edges e WHERE e.successor = ANY (ARRAY (SELECT id FROM old))
)
DELETE FROM tickwright.workflow_nodes n WHERE n.id = ANY (ARRAY (SELECT id FROM old));

-- name: delete_workflows
-- Delete at most $2 workflows that ended longer than $1 ago and have no nodes left; and those that were inside of them. Indexes: workflows_ended,
-- workflows_root.
DELETE FROM tickwright.workflows w
 WHERE w.root_id = ANY (ARRAY (SELECT o.id FROM tickwright.workflows o
                                WHERE o.ended_at < clock_timestamp() - $1::interval AND o.parent_id IS NULL
                                  AND NOT EXISTS (SELECT FROM tickwright.workflow_nodes n WHERE n.root_id = o.id)
                                ORDER BY o.ended_at LIMIT $2));

-- name: hint_waiting_groups
-- Let claims look at groups with a job that is due for longer than $3, at which nothing else makes them look: a claim passed by a job that another session had
-- locked, or a hint was lost with its process. The first $4 groups behind the type $1 and the group $2; returns them, the hinted ones, and the last one. Index:
-- scheduled_tasks_grouped, one probe a group.
WITH RECURSIVE walk AS (
  (SELECT t.task_type, t.group_key, t.due_at FROM ONLY tickwright.scheduled_tasks t
    WHERE t.due_at IS NOT NULL AND (t.task_type, t.group_key) > ($1::text, $2::text) ORDER BY t.task_type, t.group_key, t.due_at LIMIT 1)
  UNION ALL
  SELECT n.task_type, n.group_key, n.due_at
    FROM walk w CROSS JOIN LATERAL (
      SELECT t.task_type, t.group_key, t.due_at FROM ONLY tickwright.scheduled_tasks t
       WHERE t.due_at IS NOT NULL AND (t.task_type, t.group_key) > (w.task_type, w.group_key) ORDER BY t.task_type, t.group_key, t.due_at LIMIT 1) AS n
), walked AS MATERIALIZED (
  SELECT * FROM walk LIMIT $4::integer
), hinted AS (
  INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at, due_at)
  SELECT w.task_type, w.group_key, clock_timestamp(), w.due_at
    FROM walked w LEFT JOIN tickwright.job_groups g ON g.task_type = w.task_type AND g.group_key = w.group_key
   WHERE w.due_at < clock_timestamp() - $3::interval AND g.ready_at IS NULL AND g.stopped_by IS NULL
  RETURNING 1
)
SELECT (SELECT count(*) FROM walked) AS groups, (SELECT count(*) FROM hinted) AS hinted, last.task_type, last.group_key
  FROM (SELECT 1) AS one LEFT JOIN (SELECT w.task_type, w.group_key FROM walked w ORDER BY w.task_type DESC, w.group_key DESC LIMIT 1) AS last ON true;

-- name: delete_idle_groups
-- Delete what claims noted of groups without a job, of the first $3 behind the type $1 and the group $2, unless their rate still counts a start or an operator let
-- them go on behind a dead letter that is kept. Returns how many were read, and the last one. Indexes: job_groups_pkey; scheduled_tasks_pkey,
-- scheduled_tasks_grouped, scheduled_tasks_dead_grouped, a probe a group.
WITH read AS MATERIALIZED (
  SELECT g.task_type, g.group_key FROM tickwright.job_groups g WHERE (g.task_type, g.group_key) > ($1::text, $2::text) ORDER BY g.task_type, g.group_key LIMIT $3
), gone AS (
  DELETE FROM tickwright.job_groups g USING read r
   WHERE g.task_type = r.task_type AND g.group_key = r.group_key AND g.ready_at IS NULL AND coalesce(g.free_at, '-infinity') < clock_timestamp()
     AND NOT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY (g.held))
     AND NOT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t WHERE t.task_type = g.task_type AND t.group_key = g.group_key AND t.due_at IS NOT NULL)
     AND NOT EXISTS (SELECT FROM tickwright.scheduled_tasks_dead d
                      WHERE coalesce(g.passed_id, g.stopped_by) IS NOT NULL AND d.task_type = g.task_type AND d.group_key = g.group_key)
)
SELECT (SELECT count(*) FROM read) AS groups, last.task_type, last.group_key
  FROM (SELECT 1) AS one LEFT JOIN (SELECT r.task_type, r.group_key FROM read r ORDER BY r.task_type DESC, r.group_key DESC LIMIT 1) AS last ON true;
