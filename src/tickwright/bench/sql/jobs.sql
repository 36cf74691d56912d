-- name: make_limit
-- The table of the limit: nothing but what a claim and a DELETE need.
CREATE TABLE IF NOT EXISTS lean (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, execute_at timestamptz NOT NULL, shard smallint NOT NULL DEFAULT 0,
  task_type varchar(50) NOT NULL, payload jsonb NOT NULL, locked_at timestamptz, attempts int NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- name: index_limit
-- Its only further index.
CREATE INDEX IF NOT EXISTS lean_due ON lean (execute_at);

-- name: fill_limit
-- The same jobs as the product's.
INSERT INTO lean (execute_at, task_type, payload)
SELECT now() - interval '1 hour' * random(), 'noop', jsonb_build_object('shipment_id', i, 'carrier', 'dhl')
  FROM generate_series(1, %s) i;

-- name: insert_limit
-- What sixteen callers put in together, at the least.
INSERT INTO lean (execute_at, task_type, payload)
SELECT u.execute_at, 'noop', u.payload FROM unnest($1::timestamptz[], $2::jsonb[]) AS u (execute_at, payload) RETURNING id;

-- name: fill_due
-- Jobs that are due already, in random order of their instants.
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload)
SELECT now() - interval '1 hour' * random(), %s, jsonb_build_object('shipment_id', i, 'carrier', 'dhl')
  FROM generate_series(1, %s) i;

-- name: fill_spread
-- Jobs that fall due from a while ahead on, spread over a span of seconds.
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type)
SELECT now() + make_interval(secs => %s) + %s * random() * interval '1 second', %s FROM generate_series(1, %s);

-- name: settle
-- Statistics and hint bits as a working system has them.
VACUUM ANALYZE tickwright.scheduled_tasks;

-- name: due_first
-- The job that a drain takes first.
SELECT id FROM ONLY tickwright.scheduled_tasks
 WHERE task_type = %s AND priority = 0 ORDER BY coalesce(retry_at, execute_at) LIMIT 1;

-- name: due_last
-- The job that a drain takes last.
SELECT id FROM ONLY tickwright.scheduled_tasks
 WHERE task_type = %s AND priority = 0 ORDER BY coalesce(retry_at, execute_at) DESC LIMIT 1;

-- name: is_pending
-- Whether a job was not claimed yet.
SELECT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks WHERE id = %s AND status = 'pending');

-- name: is_there
-- Whether a job was not finished yet.
SELECT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks WHERE id = %s);

-- name: transactions
-- What the database has committed or rolled back.
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database();
