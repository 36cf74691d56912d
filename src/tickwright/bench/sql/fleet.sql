-- name: insert_one
-- A job as a program inserts it: one row, one transaction, due in $1 seconds.
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (clock_timestamp() + make_interval(secs => %s), 'late');

-- name: connections
-- Open connections of the product's processes.
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tickwright%%';
