-- name: add
-- Add a workflow and return its id: a new one, or the one that has its key. All its rules are in this function. $2 bounds the wait for a key that another
-- transaction holds. Index: workflows_key.
SELECT tickwright.add_workflow(CAST($1::text AS jsonb)) AS id
  FROM (SELECT CASE WHEN $2::text IS NOT NULL THEN set_config('lock_timeout', $2::text, true) ELSE '' END AS lock_timeout) AS bound
 WHERE bound.lock_timeout IS NOT NULL;

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
