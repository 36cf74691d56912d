-- name: fill_backlog
-- Jobs of one group that are due already.
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, group_key)
SELECT now() - interval '1 hour' + i * interval '1 ms', 'noop.grouped', jsonb_build_object('shipment_id', i, 'carrier', 'dhl'), 'backlog'
  FROM generate_series(1, %s) i;

-- name: fill_others
-- Jobs of other groups, in turns, that fall due while the backlog is drained.
INSERT INTO tickwright.scheduled_tasks (execute_at, task_type, payload, group_key)
SELECT now() + make_interval(secs => %s) + i * make_interval(secs => %s), 'noop.grouped', jsonb_build_object('shipment_id', i, 'carrier', 'dhl'), 'group-' || i %% %s
  FROM generate_series(1, %s) i;

-- name: ends
-- The jobs that a drain takes first and last.
SELECT min(id), max(id) FROM ONLY tickwright.scheduled_tasks;
