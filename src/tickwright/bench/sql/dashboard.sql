-- name: make_types
-- Ten types whose jobs wait for an operator; a tenth of the jobs are of each.
INSERT INTO tickwright.task_types (name, target, paused_at)
SELECT 'screen.' || n, 'python:screen.' || n, now() FROM generate_series(0, 9) AS n;

-- name: put_jobs
-- $1 live jobs: two of five are due, by up to a day, the others within a week.
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, idempotency_key)
SELECT now() + CASE WHEN n % 5 < 2 THEN -1 ELSE 7 END * random() * interval '1 day', 'screen.' || n % 10,
       jsonb_build_object('shipment_id', n, 'carrier', 'dhl'), CASE WHEN n % 10 = 3 THEN 'key-' || n END
  FROM generate_series(1, $1::integer) AS n;

-- name: put_dead
-- $1 jobs whose last attempt failed, within the last day.
INSERT INTO tickwright.scheduled_tasks_dead
  (id, execute_at, task_type, payload, status, attempts, started_at, completed_at, error_message)
SELECT nextval(pg_get_serial_sequence('tickwright.scheduled_tasks', 'id')), at, 'screen.' || n % 10, jsonb_build_object('shipment_id', n), 'failed', 3, at,
       at + interval '1 second', 'carrier ' || n % 50 || ' answers 503'
  FROM generate_series(1, $1::integer) AS n, LATERAL (SELECT now() - n * interval '1 day' / $1::integer AS at) AS moment;

-- name: make_history
-- Puts finished jobs into the table of one day, as workers do one by one.
CREATE FUNCTION public.put_history(jobs integer, days_ago integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('INSERT INTO tickwright.%I (id, execute_at, task_type, payload, status, attempts, started_at, completed_at, result) '
                 'SELECT nextval(pg_get_serial_sequence(''tickwright.scheduled_tasks'', ''id'')), at, ''screen.'' || n %% 10, '
                 'jsonb_build_object(''shipment_id'', n), CASE WHEN n %% 50 = 0 THEN ''cancelled'' ELSE ''completed'' END, 1, at, '
                 'at + interval ''20 milliseconds'', ''{"ok": true}'' '
                 'FROM generate_series(1, $1) AS n, LATERAL (SELECT $2 + n * interval ''1 hour'' / $1 AS at) AS moment',
                 tickwright.ensure_history(now() - days_ago * interval '1 day'))
    USING jobs, date_trunc('day', now()) - days_ago * interval '1 day';
END $$;

-- name: put_history
-- $1 of them in each of the last seven days.
SELECT count(public.put_history($1::integer, days_ago)) FROM generate_series(1, 7) AS days_ago;

-- name: finish_slices
-- Polls of time slots that have passed were published and polled, but for one in fifty of one partner's.
UPDATE tickwright.poll_slices SET published = selected, polled = selected - CASE WHEN partner_no = 1 THEN selected / 50 ELSE 0 END;

-- name: put_freshness
-- Every account was judged a minute ago; its slices are kept as long as the product keeps them, then days, for a month.
WITH judged AS (
  INSERT INTO tickwright.account_lags (account_no, interval_minutes, due_at, polls, fresh, lag)
  SELECT account_no, polling_interval_minutes, date_trunc('minute', now()), 5000, 5000 - account_no % 90, 1 + account_no % 7 * 0.1
    FROM tickwright.polling_schedule_config
)
INSERT INTO tickwright.account_freshness (account_no, minutes, from_at, keep_until, polls, fresh, lag)
SELECT account_no, minutes, from_at, from_at + kept, 200, 200 - account_no % 3, 1
  FROM tickwright.polling_schedule_config CROSS JOIN (
    SELECT 5 AS minutes, date_bin('5 minutes', now(), 'epoch') - n * interval '5 minutes' AS from_at, interval '390 minutes' AS kept
      FROM generate_series(0, 77) AS n
    UNION ALL
    SELECT 1440, date_bin('1 day', now(), 'epoch') - n * interval '1 day', interval '31 days' FROM generate_series(1, 30) AS n) AS spans;

-- name: settle_partners
-- Partners have a rate and a concurrency.
UPDATE tickwright.partners SET settings = '{"rate": "1000/s", "concurrency": 200}';

-- name: put_waiting_polls
-- Polls that consumers have not taken yet.
INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids)
SELECT now() - n * interval '1 second', n % 120, p.partner_no, ARRAY[n], ARRAY[1], ARRAY['AWB' || n]
  FROM generate_series(1, 2000) AS n CROSS JOIN tickwright.partners AS p;

-- name: put_outbox
-- Messages to five destinations, of which one fails.
INSERT INTO tickwright.outbox (destination, payload, attempts, next_at, error_message)
SELECT 'amqp:shop.' || n % 5, '{"n": 1}', CASE WHEN n % 5 = 0 THEN 4 ELSE 0 END,
       CASE WHEN n % 5 = 0 THEN now() + interval '1 hour' ELSE '-infinity' END, CASE WHEN n % 5 = 0 THEN 'no route' END
  FROM generate_series(1, 20000) AS n;

-- name: put_dead_messages
-- Messages that were given up.
INSERT INTO tickwright.outbox_dead (id, destination, payload, headers, created_at, attempts, error_message)
SELECT nextval(pg_get_serial_sequence('tickwright.outbox', 'id')), 'amqp:gone', '{}', '{}', now(), 25, 'no route' FROM generate_series(1, 5000) AS n;

-- name: put_alerts
-- Some fire, many did.
INSERT INTO tickwright.alerts (rule, subject, severity, summary, state, resolved_at)
SELECT 'account_lag', 'a' || n, CASE WHEN n % 3 = 0 THEN 'critical' ELSE 'warning' END, 'account a' || n || ' lags',
       CASE WHEN n % 500 = 0 THEN 'firing' ELSE 'resolved' END, CASE WHEN n % 500 <> 0 THEN now() END
  FROM generate_series(1, 20000) AS n;

-- name: put_audit
-- Many actions of one operator.
INSERT INTO tickwright.audit (actor, action, subject, before, after)
SELECT 'Ada', CASE WHEN n % 2 = 0 THEN 'jobs.cancel' ELSE 'accounts.put' END, 'thing ' || n, '{"a": 1}', '{"a": 2}'
  FROM generate_series(1, 50000) AS n;

-- name: put_leases
-- The leases of loops, as an installation has them.
INSERT INTO tickwright.job_config (job_name) SELECT 'screen.' || n FROM generate_series(1, 50) AS n;

-- name: put_entities
-- Entities of the fan-out with their cursors.
WITH made AS (
  INSERT INTO tickwright.entities (code, polling_enabled_modules) SELECT 'E' || n, 'LOCATIONS,CDRS' FROM generate_series(1, 5000) AS n RETURNING code
)
INSERT INTO tickwright.fanout_cursors (entity_code, task_type, last_window_at, last_success_at)
SELECT code, module, date_bin('15 minutes', now(), 'epoch'), now() FROM made, unnest('{LOCATIONS,CDRS}'::text[]) AS module;

-- name: put_windows
-- Windows of a month.
INSERT INTO tickwright.fanout_windows (task_type, window_at, succeeded)
SELECT module, date_bin('15 minutes', now(), 'epoch') - n * interval '15 minutes', 5000
  FROM unnest('{LOCATIONS,CDRS}'::text[]) AS module, generate_series(0, 2800) AS n;

-- name: make_clients
-- The clients that the campaigns are about.
CREATE TABLE public.clients (id bigint PRIMARY KEY, age bigint NOT NULL);

-- name: put_clients
-- A few: campaigns' own bench has a million.
INSERT INTO public.clients SELECT n, 18 + n % 60 FROM generate_series(1, 1000) AS n;

-- name: put_program
-- A batch that a program declared.
WITH made AS (INSERT INTO tickwright.batches (name, kind, type) VALUES ('reconcile', 'program', 'MANUAL') RETURNING id)
INSERT INTO tickwright.batch_versions (batch_id, version, terms, made_by) SELECT id, 1, '{}', 'app' FROM made;

-- name: put_executions
-- Executions of the campaigns' past, and of one all its chunks and actions.
WITH made AS (
  INSERT INTO tickwright.executions (batch_id, slot_at, status, snapshot, started_at, planned_at, finished_at, chunks, chunks_done, chunks_released, version)
  SELECT b.id, now() - n * interval '6 hours', 'FINISHED', '{}', now(), now(), now(), 1000, 1000, 1000, 1
    FROM tickwright.batches b, generate_series(1, 100) AS n RETURNING id
), one AS (SELECT min(id) AS id FROM made), chunks AS (
  INSERT INTO tickwright.execution_chunks (execution_id, number, state, value, seen, selected, actions, began_at, done_at)
  SELECT one.id, n, 'released', '{}', 100, 50, 50, now(), now() + interval '1 second' FROM one, generate_series(0, 999) AS n
)
INSERT INTO tickwright.execution_actions (execution_id, client_id, chunk, client)
SELECT one.id, 'c' || n, n % 1000, '{"age": 30}' FROM one, generate_series(1, 50000) AS n;

-- name: put_reports
-- Reports that are finished, of three parts each.
WITH made AS (
  INSERT INTO tickwright.reports (type, query_key, requester, department, status, plan, deadline_at, step_at, conditions,
                                  started_at, last_part_at, finished_at, checksum, file_key, file_address, rows, bytes, file_expires_at)
  SELECT 'screen', md5(n::text) || md5('x'), 'r' || n % 1000, 'd' || n % 20, 'finished', '{"listeners": [], "merge": ""}', now(), NULL,
         jsonb_build_object('n', n), now(), now(), now(), md5(n::text), 'reports/' || n, 'file:///reports/', 1000, 50000, now() + interval '7 days'
    FROM generate_series(1, 20000) AS n RETURNING id
)
INSERT INTO tickwright.report_parts (report_id, listener, stage, kind, served_by, required, state, place, checksum)
SELECT id, listener, 1, 'function', 'function:' || listener, true, 'done', 'redis', 'x'
  FROM made, unnest('{users,payments,orders}'::text[]) AS listener;

-- name: subjects
-- One of each, for addresses that name something: from the middle, where there is a middle.
SELECT (SELECT id FROM ONLY tickwright.scheduled_tasks WHERE task_type = 'screen.4' AND priority = 0
         ORDER BY coalesce(retry_at, execute_at) LIMIT 1)                                                        AS job_id,
       (SELECT account_id FROM tickwright.polling_schedule_config ORDER BY account_no DESC LIMIT 1)              AS account_id,
       (SELECT name FROM tickwright.partners ORDER BY partner_no LIMIT 1)                                        AS partner,
       (SELECT id FROM tickwright.trackers WHERE place IS NOT NULL LIMIT 1)                                      AS tracker_id,
       (SELECT external_id FROM tickwright.trackers WHERE place IS NOT NULL LIMIT 1)                             AS external_id,
       (SELECT min(execution_id) FROM tickwright.execution_chunks)                                               AS execution_id,
       (SELECT max(id) FROM tickwright.reports)                                                                  AS report_id,
       (SELECT max(id) FROM tickwright.workers WHERE lost_at IS NULL AND 'worker' = ANY (roles))                 AS worker;

-- name: turn_once
-- Every slot has had a turn, so that ledgers can be filled from there backwards.
UPDATE tickwright.poll_slots SET prev_due_at = next_due_at - make_interval(mins => interval_minutes);
