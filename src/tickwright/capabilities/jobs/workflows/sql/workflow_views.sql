-- name: plan
-- Let the next statement of this transaction follow the indexes that it names: statistics do not know yet of a workflow that was added a moment ago.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true);

-- name: node_state
-- The state of a node: how it ended, or that of its live job; otherwise it waits. An inner workflow runs until it has ended.
coalesce(n.status, (SELECT t.status FROM ONLY tickwright.scheduled_tasks t WHERE t.id = n.id), CASE WHEN n.is_workflow THEN 'running' ELSE 'waiting' END);

-- name: shown
-- The columns of a workflow that callers see.
w.id, w.root_id, w.parent_id, w.name, w.key, w.state, w.nodes, w.open, w.failed, w.cancelled, w.created_at, w.deadline_at, w.ended_at, w.cancelled_at, w.reason;

-- name: search
-- The matches among the next $6 outermost workflows below the id $5, and how far the search came; the columns as in the searches for jobs.
-- Index: workflows_outermost, read backwards.
SELECT l.id, l.searched, l.ended, l.matches
  FROM (SELECT w.id, row_number() OVER way AS searched, lead(w.id) OVER way IS NULL AS ended,
               ($1::text[] IS NULL OR w.state = ANY ($1)) AND ($2::text IS NULL OR w.name ILIKE $2 OR w.key ILIKE $2)
               AND ($3::timestamptz IS NULL OR w.created_at >= $3) AND ($4::timestamptz IS NULL OR w.created_at < $4) AS matches
          FROM tickwright.workflows w WHERE w.id < $5::bigint AND w.parent_id IS NULL
        WINDOW way AS (ORDER BY w.id DESC) ORDER BY w.id DESC LIMIT $6::bigint) AS l
 WHERE coalesce(l.matches, false) OR l.ended OR l.searched = $6
 ORDER BY l.id DESC LIMIT $7::bigint;

-- name: get_many
-- The workflows of a page, newest first. Index: workflows_pkey.
SELECT {shown} FROM tickwright.workflows w WHERE w.id = ANY ($1::bigint[]) ORDER BY w.id DESC;

-- name: get
-- One workflow, and the database's clock. Index: workflows_pkey.
SELECT {shown}, w.last_id, clock_timestamp() AS now FROM tickwright.workflows w WHERE w.id = $1::bigint;

-- name: structure
-- The nodes of a whole ($1) with the ids $2 < id <= $3, in this order, at most $4, with what each waits for. They do not change once they are
-- added. The sum keeps the index of names out of the plan. Indexes: workflow_nodes_pkey, workflow_edges_successor.
SELECT n.id, n.workflow_id, n.is_workflow, n.name, coalesce(n.task_type, '') AS task_type,
       ARRAY(SELECT e.predecessor FROM tickwright.workflow_edges e WHERE e.successor = n.id) AS predecessors
  FROM tickwright.workflow_nodes n WHERE n.id > $2::bigint AND n.id <= $3::bigint AND n.root_id + 0 = $1::bigint
 ORDER BY n.id LIMIT $4::bigint;

-- name: states
-- A letter for the state of each node of a whole ($1) with $2 < id <= $3, in the order of their ids: 200,000 states in as many bytes. Letters as
-- in graph.py. Indexes: workflow_nodes_pkey, scheduled_tasks_pkey.
SELECT coalesce(string_agg(
         CASE n.status WHEN 'completed' THEN 'c' WHEN 'failed' THEN 'f' WHEN 'cancelled' THEN 'x' WHEN 'skipped' THEN 's'
         ELSE CASE WHEN n.is_workflow THEN 'o'
                   ELSE coalesce((SELECT CASE t.status WHEN 'processing' THEN 'r' ELSE 'p' END FROM ONLY tickwright.scheduled_tasks t WHERE t.id = n.id), 'w')
              END END, '' ORDER BY n.id), '') AS states
  FROM tickwright.workflow_nodes n WHERE n.id > $2::bigint AND n.id <= $3::bigint AND n.root_id + 0 = $1::bigint;

-- name: nodes
-- Some nodes, in the order of their ids. Indexes: workflow_nodes_pkey, scheduled_tasks_pkey.
SELECT n.id, n.name, n.task_type, n.workflow_id, n.is_workflow, n.on_failed, n.stalled, {node_state} AS status
  FROM tickwright.workflow_nodes n WHERE n.id = ANY ($1::bigint[]) ORDER BY n.id;

-- name: named
-- The nodes of a whole ($1) whose names begin with $2, at most $4. Index: workflow_nodes_root_id_name_key.
SELECT n.id FROM tickwright.workflow_nodes n
 WHERE n.root_id = $1::bigint AND n.name >= $2::text AND n.name < $3::text ORDER BY n.name LIMIT $4::bigint;

-- name: predecessors
-- What a node ($1) waits for: those that have not completed first, at most $2, and how many there are. Indexes: workflow_edges_successor,
-- workflow_nodes_pkey, scheduled_tasks_pkey.
SELECT p.*, count(*) OVER () AS total, count(*) FILTER (WHERE p.status <> 'completed') OVER () AS not_completed
  FROM tickwright.workflow_edges e
 CROSS JOIN LATERAL (SELECT n.id, n.name, n.task_type, n.workflow_id, n.is_workflow, n.on_failed, n.stalled, {node_state} AS status
                       FROM tickwright.workflow_nodes n WHERE n.id = e.predecessor LIMIT 1) AS p
 WHERE e.successor = $1::bigint
 ORDER BY CASE p.status WHEN 'failed' THEN 0 WHEN 'cancelled' THEN 1 WHEN 'completed' THEN 3 ELSE 2 END, p.id LIMIT $2::bigint;

-- name: successors
-- What waits for a node ($1), at most $2, and how many there are. Indexes: workflow_edges_pkey, workflow_nodes_pkey, scheduled_tasks_pkey.
SELECT s.*, count(*) OVER () AS total, count(*) FILTER (WHERE s.status <> 'completed') OVER () AS not_completed
  FROM tickwright.workflow_edges e
 CROSS JOIN LATERAL (SELECT n.id, n.name, n.task_type, n.workflow_id, n.is_workflow, n.on_failed, n.stalled, {node_state} AS status
                       FROM tickwright.workflow_nodes n WHERE n.id = e.successor LIMIT 1) AS s
 WHERE e.predecessor = $1::bigint ORDER BY s.id LIMIT $2::bigint;

-- name: live
-- The live jobs of a whole ($1) with $2 < id <= $3: those that run first, then those that are due first; at most $4 of the first 1,000.
-- Indexes: scheduled_tasks_pkey, workflow_nodes_pkey.
SELECT f.id, f.status, f.due_at, f.attempts, f.max_attempts, n.name, n.task_type
  FROM (SELECT t.id, t.status, coalesce(t.retry_at, t.execute_at) AS due_at, t.attempts, t.max_attempts FROM ONLY tickwright.scheduled_tasks t
         WHERE t.id > $2::bigint AND t.id <= $3::bigint AND t.workflow_id IS NOT NULL ORDER BY t.id LIMIT 1000) AS f
 CROSS JOIN LATERAL (SELECT o.name, o.task_type FROM tickwright.workflow_nodes o WHERE o.id = f.id AND o.root_id = $1::bigint LIMIT 1) AS n
 ORDER BY f.status DESC, f.due_at, f.id LIMIT $4::bigint;

-- name: blocking
-- The ended nodes of a whole ($1), of these ids, for which others still wait until they are retried, at most $3, and for how many of those (counted up to
-- 1,000) each is waited for. Indexes: workflow_nodes_pkey, workflow_edges_pkey.
SELECT n.id, n.name, n.status, s.waiting
  FROM tickwright.workflow_nodes n
 CROSS JOIN LATERAL (SELECT count(*) AS waiting
                       FROM (SELECT e.successor FROM tickwright.workflow_edges e WHERE e.predecessor = n.id LIMIT 1000) AS e
                      CROSS JOIN LATERAL (SELECT o.status, o.on_failed FROM tickwright.workflow_nodes o WHERE o.id = e.successor LIMIT 1) AS o
                      WHERE o.status IS NULL AND o.on_failed = 'wait') AS s
 WHERE n.id = ANY ($2::bigint[]) AND n.root_id = $1::bigint AND s.waiting > 0 ORDER BY n.id LIMIT $3::bigint;

-- name: job_errors
-- The last errors of these jobs. Index: scheduled_tasks_dead_pkey.
SELECT t.id, left(split_part(t.error_message, E'\n', 1), 300) AS error FROM tickwright.scheduled_tasks_dead t WHERE t.id = ANY ($1::bigint[]);

-- name: node_of
-- A node and its workflow. Indexes: workflow_nodes_pkey, workflows_pkey.
SELECT n.id, n.root_id, n.workflow_id, n.name, n.task_type, n.is_workflow, n.on_failed, n.stalled, n.waits_for, {node_state} AS status
  FROM tickwright.workflow_nodes n WHERE n.id = $1::bigint;

-- name: surroundings
-- A job as a node, the name of its workflow, and how many of its first 1,000 successors wait for it. Indexes: workflow_nodes_pkey, workflows_pkey,
-- workflow_edges_pkey.
SELECT n.id, n.name, n.workflow_id, n.on_failed, n.stalled, w.name AS workflow_name,
       (SELECT count(*) FROM (SELECT e.successor FROM tickwright.workflow_edges e WHERE e.predecessor = n.id LIMIT 1000) AS e
         CROSS JOIN LATERAL (SELECT o.status FROM tickwright.workflow_nodes o WHERE o.id = e.successor LIMIT 1) AS o WHERE o.status IS NULL) AS waiting
  FROM tickwright.workflow_nodes n JOIN tickwright.workflows w ON w.id = n.workflow_id WHERE n.id = $1::bigint;
