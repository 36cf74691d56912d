-- name: now
-- What changes every second: due jobs, up to $1, and waiting ones, up to $2 (0 counts none), the age of the oldest due one, and the $3 newest
-- jobs. Index: scheduled_tasks_due, one bounded scan per claim range; the primary keys of the live table and of each day.
WITH RECURSIVE {claim_range}, {counted}
SELECT (SELECT cut FROM cut) AS cut,
       (SELECT count(*) FROM (
          SELECT FROM counted CROSS JOIN LATERAL (
            SELECT FROM ONLY tickwright.scheduled_tasks t
             WHERE t.task_type = counted.task_type AND t.priority = counted.priority
               AND coalesce(t.retry_at, t.execute_at) <= now() AND t.status = 'pending' LIMIT $1::integer) AS bounded
           LIMIT $1) AS due) AS due,
       (SELECT count(*) FROM (
          SELECT FROM counted CROSS JOIN LATERAL (
            SELECT FROM ONLY tickwright.scheduled_tasks t
             WHERE t.task_type = counted.task_type AND t.priority = counted.priority
               AND coalesce(t.retry_at, t.execute_at) > now() LIMIT $2::integer) AS bounded
           LIMIT $2) AS waiting) AS waiting,
       (SELECT coalesce(date_part('epoch', clock_timestamp() - min(head.due_at)), 0)
          FROM counted CROSS JOIN LATERAL (
            SELECT coalesce(t.retry_at, t.execute_at) AS due_at FROM ONLY tickwright.scheduled_tasks t
             WHERE t.task_type = counted.task_type AND t.priority = counted.priority
               AND coalesce(t.retry_at, t.execute_at) <= now() AND t.status = 'pending'
             ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT 1) AS head) AS oldest_due_s,
       (SELECT coalesce(json_agg(json_build_object(
                 'id', j.id, 'task_type', j.task_type, 'status', j.status, 'attempts', j.attempts, 'max_attempts', j.max_attempts,
                 'due_at', tickwright.shown_at(coalesce(j.due_at, j.retry_at, j.execute_at)), 'error', left(split_part(j.error_message, E'\n', 1), 300))), '[]')
          FROM (SELECT * FROM tickwright.scheduled_tasks ORDER BY id DESC LIMIT $3::integer) AS j)::text AS latest;

-- name: gauges
-- Per task type: due, running and upcoming jobs, each counted up to $1, and the age of the oldest due one. Running ones are counted among
-- the $1 oldest due rows. cut: some claim ranges may be left out. Index: scheduled_tasks_due, three bounded scans per claim range.
WITH RECURSIVE {claim_range}, {counted}
SELECT claim_range.task_type,
       sum(due.jobs)::bigint AS due, sum(begun.jobs)::bigint AS processing, sum(upcoming.jobs)::bigint AS upcoming,
       coalesce(max(due.oldest_s), 0) AS oldest_due_s, bool_or(cut.cut) AS cut
  FROM counted AS claim_range CROSS JOIN cut
 CROSS JOIN LATERAL (
   SELECT count(*) AS jobs, date_part('epoch', clock_timestamp() - min(d.due)) AS oldest_s
     FROM (SELECT coalesce(t.retry_at, t.execute_at) AS due FROM ONLY tickwright.scheduled_tasks t
            WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority AND t.status = 'pending'
              AND coalesce(t.retry_at, t.execute_at) <= now()
            ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT $1) AS d) AS due
 CROSS JOIN LATERAL (
   SELECT count(*) FILTER (WHERE b.status = 'processing') AS jobs
     FROM (SELECT t.status FROM ONLY tickwright.scheduled_tasks t
            WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority
              AND coalesce(t.retry_at, t.execute_at) <= now()
            ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT $1) AS b) AS begun
 CROSS JOIN LATERAL (
   SELECT count(*) AS jobs
     FROM (SELECT 1 FROM ONLY tickwright.scheduled_tasks t
            WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority
              AND coalesce(t.retry_at, t.execute_at) > now()
            LIMIT $1) AS u) AS upcoming
 GROUP BY claim_range.task_type ORDER BY claim_range.task_type;

-- name: dead_letters
-- Dead letters, counted up to $1. Index: scheduled_tasks_dead_pkey.
SELECT count(*) FROM (SELECT FROM tickwright.scheduled_tasks_dead LIMIT $1) AS bounded;

-- name: workflows
-- The outermost workflows that have not ended, those that ended within the last hour by state, and the jobs that wait for others: each counted up to $1.
-- Indexes: workflows_running, workflows_ended, scheduled_tasks_waiting_pkey.
SELECT (SELECT count(*) FROM (SELECT FROM tickwright.workflows w WHERE w.ended_at IS NULL AND w.parent_id IS NULL ORDER BY w.id LIMIT $1) AS bounded) AS running,
       (SELECT count(*) FROM (SELECT FROM ONLY tickwright.scheduled_tasks_waiting t ORDER BY t.id LIMIT $1) AS bounded) AS waiting_jobs,
       count(*) FILTER (WHERE e.state = 'completed') AS completed, count(*) FILTER (WHERE e.state = 'failed') AS failed,
       count(*) FILTER (WHERE e.state = 'cancelled') AS cancelled
  FROM (SELECT w.state FROM tickwright.workflows w
         WHERE w.ended_at > clock_timestamp() - interval '1 hour' AND w.parent_id IS NULL ORDER BY w.ended_at DESC LIMIT $1) AS e;

-- name: type_counters
-- Each living session's counters of its task types. Small: a row per session, with at most 20 kB of counters.
SELECT id, date_part('epoch', seen_at) AS seen_s, (facts #> '{counters,types}')::text AS types, date_part('epoch', clock_timestamp()) AS now_s
  FROM tickwright.workers WHERE lost_at IS NULL AND lease_until > clock_timestamp() ORDER BY id DESC LIMIT 1000;
