-- name: add
-- Add a workflow and return its id: a new one, or the one that has its key. All its rules are in this function. $2 bounds the wait for a key that another
-- transaction holds. Index: workflows_key.
SELECT tickwright.add_workflow(CAST($1::text AS jsonb)) AS id
  FROM (SELECT CASE WHEN $2::text IS NOT NULL THEN set_config('lock_timeout', $2::text, true) ELSE '' END AS lock_timeout) AS bound
 WHERE bound.lock_timeout IS NOT NULL;

-- name: bound_key
-- Bound the wait for a key that another transaction holds to $1.
SELECT set_config('lock_timeout', $1, true);

-- name: is_new
-- Whether the ``add`` before it in this session made the workflow: its last job has the last id that the session took from the sequence. One that was known
-- took an id for nothing. Index: workflows_pkey.
SELECT w.last_id = currval('tickwright.scheduled_tasks_id_seq') FROM tickwright.workflows w WHERE w.id = $1::bigint;

-- name: ids
-- The ids of the nodes of a workflow and of those inside of it, inner workflows first, each in the order of its definition. Index: workflow_nodes_pkey.
SELECT n.id, n.name FROM tickwright.workflow_nodes n
 WHERE n.id BETWEEN $1::bigint AND (SELECT w.last_id FROM tickwright.workflows w WHERE w.id = $1::bigint) AND n.root_id = $1::bigint
 ORDER BY n.is_workflow DESC, n.id;

-- name: get
-- One workflow. Index: workflows_pkey.
SELECT w.id, w.root_id, w.parent_id, w.name, w.key, w.state, w.nodes, w.open, w.failed, w.cancelled, w.created_at, w.deadline_at, w.ended_at, w.cancelled_at,
       w.reason, clock_timestamp() AS now
  FROM tickwright.workflows w WHERE w.id = $1::bigint;

-- name: results
-- Results of the predecessors of a job behind the id $2, by id. Index: workflow_edges_successor.
SELECT n.id, n.name, n.status, tickwright.result_of_node(n.id) AS result
  FROM (SELECT e.predecessor FROM tickwright.workflow_edges e WHERE e.successor = $1::bigint AND e.predecessor > $2::bigint ORDER BY e.predecessor LIMIT $3) AS g
 CROSS JOIN LATERAL (SELECT o.* FROM tickwright.workflow_nodes o WHERE o.id = g.predecessor LIMIT 1) AS n
 ORDER BY n.id;

-- name: of_job
-- The workflow and the name of a job of a workflow. Index: workflow_nodes_pkey.
SELECT n.workflow_id, n.root_id, n.name FROM tickwright.workflow_nodes n WHERE n.id = $1::bigint AND NOT n.is_workflow;

-- name: cancel
-- Cancel a workflow, or with $2 a job of it and all that come after it; returns how many jobs. Index: workflow_nodes_pkey.
SELECT tickwright.cancel_workflow($1::bigint, $2::bigint, 'cancelled') AS jobs;

-- name: retry
-- Run again what did not complete of a workflow, or with $2 of a job and all that come after it; returns how many jobs. Index: workflow_nodes_pkey.
SELECT tickwright.retry_workflow($1::bigint, $2::bigint) AS jobs;

-- name: sweep
-- Cancel workflows whose deadline is over, and try again what was locked; at most $1 of each. Returns how many, and in how many seconds the next deadline
-- is over. Indexes: workflows_deadline, workflows_cancelled, workflow_nodes_stalled.
SELECT tickwright.sweep_workflows($1::integer) AS swept,
       (SELECT date_part('epoch', min(w.deadline_at) - clock_timestamp()) FROM tickwright.workflows w
         WHERE w.deadline_at > clock_timestamp() AND w.ended_at IS NULL AND w.cancelled_at IS NULL) AS deadline_in_s,
       EXISTS (SELECT FROM tickwright.workflows w WHERE w.cancelled_at IS NOT NULL AND w.ended_at IS NULL) AS cancels;
