-- name: add_chains
-- One workflow of $1 chains of $2 jobs each; returns its id.
SELECT tickwright.add_workflow(jsonb_build_object('name', 'chains', 'jobs', (
         SELECT jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                  'name', format('%s-%s', c, n), 'task_type', 'noop', 'payload', jsonb_build_object('shipment_id', n),
                  'after', CASE WHEN n > 1 THEN jsonb_build_array(format('%s-%s', c, n - 1)) END)) ORDER BY c, n)
           FROM generate_series(1, $1::integer) AS c, generate_series(1, $2::integer) AS n)));

-- name: add_fan_in
-- One workflow of $1 jobs and one that waits for all of them; returns its id.
SELECT tickwright.add_workflow(jsonb_build_object('name', 'fan-in', 'jobs', (
         SELECT jsonb_agg(jsonb_build_object('name', n::text, 'task_type', 'noop', 'payload', jsonb_build_object('shipment_id', n)) ORDER BY n)
                || jsonb_build_object('name', 'last', 'task_type', 'noop', 'payload', jsonb_build_object('shipment_id', 0), 'after', jsonb_agg(n::text))
           FROM generate_series(1, $1::integer) AS n)));

-- name: has_ended
-- Whether a workflow has ended.
SELECT ended_at IS NOT NULL FROM tickwright.workflows WHERE id = $1;

-- name: ran
-- How a workflow ended, and the seconds from its first start to its end.
SELECT w.state, date_part('epoch', w.ended_at - (SELECT min(t.started_at) FROM tickwright.scheduled_tasks t WHERE t.id BETWEEN w.id AND w.last_id))
  FROM tickwright.workflows w WHERE w.id = $1;

-- name: fan_in_ms
-- From the end of the last predecessor to the start of the job that waited for all.
SELECT 1000 * date_part('epoch', t.started_at - (SELECT max(p.completed_at) FROM tickwright.scheduled_tasks p WHERE p.id BETWEEN w.id AND w.last_id - 1))
  FROM tickwright.workflows w JOIN tickwright.scheduled_tasks t ON t.id = w.last_id WHERE w.id = $1;

-- name: settle
-- Statistics and hint bits as a working system has them.
VACUUM ANALYZE tickwright.scheduled_tasks, tickwright.scheduled_tasks_waiting, tickwright.workflow_nodes, tickwright.workflow_edges;
