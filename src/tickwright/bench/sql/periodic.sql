-- name: put_type
-- A task type that no worker of the bench runs: its jobs stay and are counted.
INSERT INTO tickwright.task_types (name, target) VALUES ('counted', 'python:counted');

-- name: put_schedules
-- $1 schedules, spread over a minute: by cron in two zones, by a duration, and a fifth of them every 15 s.
WITH made AS (
INSERT INTO tickwright.schedules (name, task_type, payload, cron, every, time_zone, spread, misfire, misfire_max, misfire_grace)
SELECT 's' || n, 'counted', jsonb_build_object('n', n), CASE n % 5 WHEN 0 THEN '* * * * *' WHEN 1 THEN '*/2 * * * *' END,
       CASE n % 5 WHEN 2 THEN interval '60 seconds' WHEN 3 THEN interval '90 seconds' WHEN 4 THEN interval '15 seconds' END,
       CASE n % 2 WHEN 0 THEN 'UTC' ELSE 'Europe/Kyiv' END, interval '60 seconds', 'all', 1000, interval '1 day'
  FROM generate_series(1, $1::integer) AS n RETURNING 1)
SELECT count(*) FROM made;

-- name: schedules
-- When each counts from, in microseconds, and which kind it is.
SELECT name, (payload ->> 'n')::integer % 5, (date_part('epoch', counts_from) * 1000000)::bigint FROM tickwright.schedules;

-- name: jobs
-- Of which schedule each job is, whatever its key, and when it is due, in microseconds.
SELECT 's' || (payload ->> 'n'), (date_part('epoch', execute_at) * 1000000)::bigint FROM tickwright.scheduled_tasks;

-- name: behind_s
-- By how many seconds the producer is late.
SELECT coalesce(greatest(0, date_part('epoch', clock_timestamp() - (SELECT min(due_at) FROM tickwright.schedules WHERE isfinite(due_at)))), 0),
       EXISTS (SELECT FROM tickwright.schedules WHERE due_at = '-infinity');
