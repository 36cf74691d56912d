-- name: list
-- The groups of the type $1 behind the name $2, by name, at most $3, with what waits, up to $4 jobs, and what runs. Indexes: job_groups_pkey,
-- scheduled_tasks_grouped, scheduled_tasks_pkey.
SELECT g.group_key AS "group", tickwright.shown_at(g.ready_at) AS next_at, tickwright.shown_at(g.free_at) AS free_at, g.stopped_by,
       (SELECT count(*) FROM (SELECT FROM ONLY tickwright.scheduled_tasks t
                               WHERE t.task_type = g.task_type AND t.group_key = g.group_key AND t.due_at IS NOT NULL LIMIT $4::integer) AS jobs) AS waiting,
       (SELECT count(*) FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY (g.held) AND t.status = 'processing') AS running
  FROM tickwright.job_groups g WHERE g.task_type = $1 AND g.group_key > $2 ORDER BY g.group_key LIMIT $3::integer;

-- name: list_stopped
-- The same for those that have stopped behind a failed job. Index: job_groups_stopped.
SELECT g.group_key AS "group", tickwright.shown_at(g.ready_at) AS next_at, tickwright.shown_at(g.free_at) AS free_at, g.stopped_by,
       (SELECT count(*) FROM (SELECT FROM ONLY tickwright.scheduled_tasks t
                               WHERE t.task_type = g.task_type AND t.group_key = g.group_key AND t.due_at IS NOT NULL LIMIT $4::integer) AS jobs) AS waiting,
       (SELECT count(*) FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY (g.held) AND t.status = 'processing') AS running
  FROM tickwright.job_groups g WHERE g.stopped_by IS NOT NULL AND g.task_type = $1 AND g.group_key > $2 ORDER BY g.group_key LIMIT $3::integer;

-- name: release
-- Let a group go on behind its dead letters, and claims look at it now; returns the last of them, nothing where it has none. Indexes: job_groups_pkey,
-- scheduled_tasks_dead_grouped.
WITH last AS (
  SELECT max(d.id) AS id FROM tickwright.scheduled_tasks_dead d WHERE d.task_type = $1 AND d.group_key = $2
), released AS (
  UPDATE tickwright.job_groups g SET passed_id = last.id, stopped_by = NULL
    FROM last WHERE g.task_type = $1 AND g.group_key = $2 AND last.id > coalesce(g.passed_id, 0)
  RETURNING last.id
), hinted AS (
  INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at) SELECT $1, $2, clock_timestamp() FROM released
), heard AS MATERIALIZED (
  SELECT tickwright.notify_of_job(clock_timestamp()) AS done FROM released
)
SELECT r.id FROM released r WHERE (SELECT count(*) FROM heard) >= 0;
