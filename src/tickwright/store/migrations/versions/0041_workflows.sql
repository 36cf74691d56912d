-- Workflows: jobs that wait for jobs. See docs/adr/0043. A job that waits is in a table of its own, in no index of due jobs, so that it costs others nothing.
-- Whichever way a job of a workflow leaves the live table, a row trigger notes that, and at the commit one deferred trigger releases what waited for it, in
-- the same transaction: the end of a job and the release of its successors are committed together. So does the end of a job in a process of an earlier release.
-- Forward on a live system: a column without a default is added, no row is read; a trigger is added that fires for jobs of workflows only.
-- Its functions name the column steps of 0044, which the same release adds.

------------------------------------------------------------------------------------------------ tables
ALTER TABLE tickwright.scheduled_tasks ADD COLUMN workflow_id bigint;
COMMENT ON COLUMN tickwright.scheduled_tasks.workflow_id IS 'The workflow that a live or waiting job belongs to; workflow_nodes says it of finished jobs, too.';

CREATE TABLE tickwright.scheduled_tasks_waiting (PRIMARY KEY (id)) INHERITS (tickwright.scheduled_tasks)
  WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
COMMENT ON TABLE tickwright.scheduled_tasks_waiting IS 'Jobs of workflows that wait for other jobs. They move to the live table when those have ended.';

CREATE TABLE tickwright.workflows (
  id          bigint       PRIMARY KEY,
  root_id     bigint       NOT NULL,
  parent_id   bigint,
  name        varchar(200) COLLATE "C" NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  key         varchar(255) COLLATE "C" CHECK (length(key) >= 1),
  digest      bytea,
  state       text         NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'completed', 'failed', 'cancelled')),
  nodes       integer      NOT NULL DEFAULT 0 CHECK (nodes >= 0),
  open        integer      NOT NULL DEFAULT 0 CHECK (open >= 0),
  failed      integer      NOT NULL DEFAULT 0 CHECK (failed >= 0),
  cancelled   integer      NOT NULL DEFAULT 0 CHECK (cancelled >= 0),
  last_id     bigint       NOT NULL,
  awaited     boolean      NOT NULL DEFAULT false,
  created_at  timestamptz  NOT NULL DEFAULT clock_timestamp(),
  deadline_at timestamptz,
  ended_at    timestamptz,
  cancelled_at timestamptz,
  reason      text
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX workflows_key ON tickwright.workflows (key) WHERE key IS NOT NULL;
CREATE INDEX workflows_parent ON tickwright.workflows (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX workflows_running ON tickwright.workflows (id) WHERE ended_at IS NULL AND parent_id IS NULL;
CREATE INDEX workflows_outermost ON tickwright.workflows (id) WHERE parent_id IS NULL;
CREATE INDEX workflows_root ON tickwright.workflows (root_id, id);
CREATE INDEX workflows_deadline ON tickwright.workflows (deadline_at) WHERE deadline_at IS NOT NULL AND ended_at IS NULL AND cancelled_at IS NULL;
CREATE INDEX workflows_cancelled ON tickwright.workflows (cancelled_at) WHERE cancelled_at IS NOT NULL AND ended_at IS NULL;
CREATE INDEX workflows_ended ON tickwright.workflows (ended_at) WHERE ended_at IS NOT NULL AND parent_id IS NULL;
COMMENT ON TABLE tickwright.workflows IS 'Workflows and the workflows inside of them. Their ids are of the sequence of jobs: a node is a job or an inner workflow.';
COMMENT ON COLUMN tickwright.workflows.root_id IS 'The outermost workflow. Its row is locked by every change of the whole.';
COMMENT ON COLUMN tickwright.workflows.last_id IS 'The last id of its jobs, also of those in workflows inside of it. All nodes of the whole are between root_id and its last_id.';
COMMENT ON COLUMN tickwright.workflows.open IS 'How many of its nodes have not ended.';

CREATE TABLE tickwright.workflow_nodes (
  id          bigint       PRIMARY KEY,
  root_id     bigint       NOT NULL,
  workflow_id bigint       NOT NULL,
  name        varchar(200) COLLATE "C" NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
  task_type   text         COLLATE "C",
  is_workflow boolean      NOT NULL DEFAULT false,
  on_failed   text         NOT NULL DEFAULT 'cancel' CHECK (on_failed IN ('cancel', 'wait', 'run', 'only')),
  waits_for   integer      NOT NULL DEFAULT 0 CHECK (waits_for >= 0),
  status      text         CHECK (status IN ('completed', 'failed', 'cancelled', 'skipped')),
  stalled     boolean      NOT NULL DEFAULT false,
  delay       interval,
  arguments   jsonb,
  result      jsonb,
  UNIQUE (root_id, name)
) WITH (fillfactor = 80);
CREATE INDEX workflow_nodes_stalled ON tickwright.workflow_nodes (id) WHERE stalled;
COMMENT ON TABLE tickwright.workflow_nodes IS 'The jobs of workflows, and the workflows inside of workflows.';
COMMENT ON COLUMN tickwright.workflow_nodes.task_type IS 'The type of the job, for the graph; NULL for an inner workflow.';
COMMENT ON COLUMN tickwright.workflow_nodes.on_failed IS
  'Where a node that it waits for did not complete: cancel it; wait until that one is retried; run when all have ended; or run only then, and else skip it.';
COMMENT ON COLUMN tickwright.workflow_nodes.waits_for IS 'While it waits: for how many nodes it still does.';
COMMENT ON COLUMN tickwright.workflow_nodes.status IS 'How it ended; NULL until then.';
COMMENT ON COLUMN tickwright.workflow_nodes.stalled IS 'It was to leave the waiting jobs while another session had locked its row; the scheduler tries again.';
COMMENT ON COLUMN tickwright.workflow_nodes.arguments IS 'Members of its payload that are results: the node of each, or a list of nodes.';
COMMENT ON COLUMN tickwright.workflow_nodes.result IS 'Its result, once the history of its day is dropped while its workflow runs.';

CREATE TABLE tickwright.workflow_edges (
  predecessor bigint NOT NULL,
  successor   bigint NOT NULL,
  PRIMARY KEY (predecessor, successor)
);
CREATE INDEX workflow_edges_successor ON tickwright.workflow_edges (successor, predecessor);
COMMENT ON TABLE tickwright.workflow_edges IS 'The successor waits for the predecessor. Both are nodes of one outermost workflow.';

-- Filled and emptied by one transaction; after a crash there is none. Without a log, because a transaction that is lost has ended no job.
CREATE UNLOGGED TABLE tickwright.workflow_ends (
  xid         xid8    NOT NULL,
  workflow_id bigint  NOT NULL,
  job_id      bigint  NOT NULL,
  was_owned   boolean NOT NULL,
  first       boolean NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX workflow_ends_xid ON tickwright.workflow_ends (xid);
COMMENT ON TABLE tickwright.workflow_ends IS 'The jobs of workflows that a transaction has ended so far; empty outside of one.';

------------------------------------------------------------------------------------------------ ends
CREATE FUNCTION tickwright.note_end(workflow_id bigint, job_id bigint, was_owned boolean) RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO tickwright.workflow_ends (xid, workflow_id, job_id, was_owned, first)
  SELECT x.xid, $1, $2, $3, NOT EXISTS (SELECT FROM tickwright.workflow_ends e WHERE e.xid = x.xid) FROM pg_current_xact_id() AS x (xid)
$$;
COMMENT ON FUNCTION tickwright.note_end IS 'Note that a job of a workflow ended, for the end of this transaction.';

CREATE FUNCTION tickwright.note_ended_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM tickwright.note_end(OLD.workflow_id, OLD.id, OLD.owner IS NOT NULL);
  RETURN NULL;
END $$;
COMMENT ON FUNCTION tickwright.note_ended_job() IS 'A job of a workflow leaves the live table, or its user deletes it while it waits.';
CREATE TRIGGER scheduled_tasks_of_workflow AFTER DELETE ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (OLD.workflow_id IS NOT NULL) EXECUTE FUNCTION tickwright.note_ended_job();
CREATE TRIGGER scheduled_tasks_waiting_deleted AFTER DELETE ON tickwright.scheduled_tasks_waiting FOR EACH ROW
  WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION tickwright.note_ended_job();

CREATE FUNCTION tickwright.advance_workflows() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  ids bigint[];
  owned boolean[];
  workflow_ids bigint[];
BEGIN
  WITH mine AS (
    DELETE FROM tickwright.workflow_ends e WHERE e.xid = NEW.xid RETURNING e.workflow_id, e.job_id, e.was_owned
  )
  SELECT array_agg(job_id), array_agg(was_owned), array_agg(DISTINCT workflow_id) INTO ids, owned, workflow_ids FROM mine;
  IF ids IS NULL THEN
    RETURN NULL;
  END IF;
  PERFORM tickwright.lock_workflows(workflow_ids);
  PERFORM tickwright.end_nodes(array_agg(e.id), array_agg(e.status))
     FROM (SELECT u.id, coalesce(j.status, CASE WHEN u.owned THEN 'completed' ELSE 'cancelled' END) AS status
             FROM unnest(ids, owned) AS u (id, owned)
             LEFT JOIN LATERAL (SELECT t.status FROM tickwright.scheduled_tasks t WHERE t.id = u.id LIMIT 1) AS j ON true) AS e
    WHERE e.status NOT IN ('pending', 'processing')
   HAVING count(*) > 0;
  RETURN NULL;
END $$;
COMMENT ON FUNCTION tickwright.advance_workflows() IS
  'At the end of a transaction that ended jobs of workflows: release, or cancel, what waited for them. A job without a row completed, if a worker held it: its type keeps no history.';
CREATE CONSTRAINT TRIGGER workflow_ends_advance AFTER INSERT ON tickwright.workflow_ends DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (NEW.first) EXECUTE FUNCTION tickwright.advance_workflows();

-- Two transactions that end the last two predecessors of a job take turns here. Who holds such a lock waits for no row of a job, so that a transaction may
-- hold rows of jobs when it comes here; several are locked in the order of their ids.
CREATE FUNCTION tickwright.lock_workflows(workflow_ids bigint[]) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM tickwright.workflows w
    WHERE w.id IN (SELECT i.root_id FROM tickwright.workflows i WHERE i.id = ANY (workflow_ids)) ORDER BY w.id FOR NO KEY UPDATE;
END $$;
COMMENT ON FUNCTION tickwright.lock_workflows(bigint[]) IS 'Lock the outermost workflows of these.';

-- Each of these has one plan, which does not depend on what the statistics say of tables that were empty a moment ago.
CREATE FUNCTION tickwright.open_successors(node_id bigint) RETURNS TABLE (id bigint, on_failed text, waits_for integer)
LANGUAGE sql STABLE ROWS 2 AS $$
  SELECT s.id, s.on_failed, s.waits_for
    FROM tickwright.workflow_edges g CROSS JOIN LATERAL (SELECT n.* FROM tickwright.workflow_nodes n WHERE n.id = g.successor LIMIT 1) AS s
   WHERE g.predecessor = node_id AND s.status IS NULL OFFSET 0
$$;
COMMENT ON FUNCTION tickwright.open_successors(bigint) IS 'What waits for a node and has not ended.';

CREATE FUNCTION tickwright.set_ends(ids bigint[], statuses text[]) RETURNS TABLE (id bigint, status text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  one text;
BEGIN
  FOR one IN SELECT DISTINCT u.status FROM unnest(statuses) AS u (status) LOOP
    RETURN QUERY
    UPDATE tickwright.workflow_nodes n SET status = one
     WHERE n.id = ANY (ARRAY (SELECT u.id FROM unnest(ids, statuses) AS u (id, status) WHERE u.status = one)) AND n.status IS NULL
    RETURNING n.id, n.status;
  END LOOP;
END $$;
COMMENT ON FUNCTION tickwright.set_ends IS 'Write how nodes ended; returns those that had not ended before.';

CREATE FUNCTION tickwright.end_nodes(ids bigint[], statuses text[]) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  lost bigint[];
  lost_statuses text[];
  next_ids bigint[];
  next_statuses text[];
  awaited bigint[];
  ready bigint[];
  skipped bigint[];
  unfit bigint[];
BEGIN
  WHILE cardinality(ids) > 0 LOOP
    SELECT array_agg(c.id), array_agg(c.status) INTO ids, statuses FROM tickwright.set_ends(ids, statuses) AS c;
    EXIT WHEN ids IS NULL;

    -- What can no longer run, as far as that reaches.
    lost := NULL;
    IF statuses && '{failed,cancelled,skipped}' THEN
      WITH RECURSIVE reached AS (
        SELECT s.id, bool_and(u.status = 'skipped') AS skip
          FROM unnest(ids, statuses) AS u (id, status) CROSS JOIN LATERAL tickwright.open_successors(u.id) AS s
         WHERE u.status <> 'completed' AND (s.on_failed = 'cancel' OR s.on_failed = 'wait' AND u.status = 'skipped')
         GROUP BY s.id
        UNION
        SELECT s.id, r.skip
          FROM reached r CROSS JOIN LATERAL tickwright.open_successors(r.id) AS s
         WHERE s.on_failed = 'cancel' OR s.on_failed = 'wait' AND r.skip
      )
      SELECT array_agg(r.id), array_agg(r.status) INTO lost, lost_statuses
        FROM (SELECT id, CASE WHEN bool_and(skip) THEN 'skipped' ELSE 'cancelled' END AS status FROM reached GROUP BY id) AS r;
      IF lost IS NOT NULL THEN
        PERFORM tickwright.set_ends(lost, lost_statuses);
        PERFORM tickwright.end_waiting(lost, lost_statuses);
        ids := ids || lost;
        statuses := statuses || lost_statuses;
      END IF;
    END IF;

    -- What waits for them: less to wait for, or nothing more.
    WITH less AS (
      SELECT s.id, s.on_failed, s.waits_for, bool_or(u.status IN ('failed', 'cancelled')) AS failed,
             (count(*) FILTER (WHERE u.status = 'completed' OR s.on_failed IN ('run', 'only')))::integer AS ended
        FROM unnest(ids, statuses) AS u (id, status) CROSS JOIN LATERAL tickwright.open_successors(u.id) AS s
       GROUP BY s.id, s.on_failed, s.waits_for
    ), fewer AS (
      UPDATE tickwright.workflow_nodes n SET waits_for = l.waits_for - l.ended
        FROM less l WHERE n.id = l.id AND n.id = ANY (ARRAY (SELECT id FROM less)) AND l.ended BETWEEN 1 AND l.waits_for - 1
    )
    SELECT array_agg(l.id) FILTER (WHERE CASE WHEN l.on_failed = 'only' THEN l.failed ELSE l.ended >= l.waits_for END),
           array_agg(l.id) FILTER (WHERE l.on_failed = 'only' AND NOT l.failed AND l.ended >= l.waits_for)
      INTO ready, skipped FROM less l;
    unfit := NULL;
    IF ready IS NOT NULL THEN
      unfit := tickwright.release_waiting(ready);
    END IF;
    IF skipped IS NOT NULL THEN
      PERFORM tickwright.end_waiting(skipped, array_fill('skipped'::text, ARRAY[cardinality(skipped)]));
    END IF;

    -- The workflows that they belong to, and which of those have ended.
    WITH ended AS (
      SELECT n.workflow_id, count(*) AS nodes, count(*) FILTER (WHERE u.status = 'failed') AS failed, count(*) FILTER (WHERE u.status = 'cancelled') AS cancelled
        FROM unnest(ids, statuses) AS u (id, status)
       CROSS JOIN LATERAL (SELECT o.workflow_id FROM tickwright.workflow_nodes o WHERE o.id = u.id LIMIT 1) AS n
       GROUP BY n.workflow_id
    ), counted AS (
      UPDATE tickwright.workflows w
         SET open = w.open - e.nodes, failed = w.failed + e.failed, cancelled = w.cancelled + e.cancelled,
             ended_at = CASE WHEN w.open = e.nodes THEN clock_timestamp() END,
             state = CASE WHEN w.open > e.nodes THEN 'running' WHEN w.reason = 'deadline' THEN 'failed' WHEN w.cancelled_at IS NOT NULL THEN 'cancelled'
                          WHEN w.failed + e.failed > 0 THEN 'failed' WHEN w.cancelled + e.cancelled > 0 THEN 'cancelled' ELSE 'completed' END
        FROM ended e WHERE w.id = e.workflow_id AND w.id = ANY (ARRAY (SELECT workflow_id FROM ended))
      RETURNING w.id, w.parent_id, w.state, w.awaited
    )
    SELECT array_agg(c.id) FILTER (WHERE c.parent_id IS NOT NULL), array_agg(c.state) FILTER (WHERE c.parent_id IS NOT NULL),
           array_agg(c.id) FILTER (WHERE c.awaited)
      INTO next_ids, next_statuses, awaited FROM counted c WHERE c.state <> 'running';
    PERFORM pg_notify('tickwright_results', a.id::text) FROM unnest(awaited) AS a (id);

    ids := coalesce(next_ids, '{}') || coalesce(skipped, '{}') || coalesce(unfit, '{}');
    statuses := coalesce(next_statuses, '{}') || array_fill('skipped'::text, ARRAY[coalesce(cardinality(skipped), 0)])
                || array_fill('failed'::text, ARRAY[coalesce(cardinality(unfit), 0)]);
  END LOOP;
END $$;
COMMENT ON FUNCTION tickwright.end_nodes IS
  'Nodes of locked workflows have ended so: release, cancel or skip what waited for them, and end the workflows whose nodes have all ended.';

CREATE FUNCTION tickwright.encrypted_types() RETURNS text[] LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT '{}'::text[] $$;
COMMENT ON FUNCTION tickwright.encrypted_types() IS 'The task types whose payloads are envelopes, into which no result can be written: none before 0042.';

CREATE FUNCTION tickwright.release_waiting(ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  free bigint[];
  unfit bigint[];
  retried record;
  sealed_types CONSTANT text[] := tickwright.encrypted_types();
BEGIN
  SELECT array_agg(f.id) INTO free
    FROM (SELECT w.id FROM ONLY tickwright.scheduled_tasks_waiting w WHERE w.id = ANY (ids) FOR UPDATE SKIP LOCKED) AS f;
  IF cardinality(free) IS DISTINCT FROM cardinality(ids) THEN
    PERFORM tickwright.stall(ids, free);
  END IF;
  SELECT array_agg(w.id) INTO unfit
    FROM ONLY tickwright.scheduled_tasks_waiting w
   CROSS JOIN LATERAL (SELECT o.arguments FROM tickwright.workflow_nodes o WHERE o.id = w.id LIMIT 1) AS n
   WHERE w.id = ANY (free)
     AND (w.task_type = ANY (sealed_types) AND (n.arguments IS NOT NULL OR NOT w.payload ? '$encrypted') OR NOT tickwright.new_job_fits('pending', NULL, 0, 0, w.task_type, w.execute_at, w.max_attempts, w.priority, w.timeout_ms,
                                     CASE WHEN n.arguments IS NULL THEN w.payload ELSE tickwright.with_results(w.payload, n.arguments) END, w.traceparent, NULL));
  IF unfit IS NOT NULL THEN
    PERFORM tickwright.end_waiting(unfit, array_fill('failed'::text, ARRAY[cardinality(unfit)]));
  END IF;
  SELECT array_agg(w.id) AS ids, array_agg(w.fence) AS fences, array_agg(w.edits) AS edits INTO retried
    FROM ONLY tickwright.scheduled_tasks_waiting w WHERE w.id = ANY (free) AND (w.fence > 0 OR w.edits IS NOT NULL);
  WITH gone AS (
    DELETE FROM ONLY tickwright.scheduled_tasks_waiting w WHERE w.id = ANY (free) RETURNING w.*
  )
  INSERT INTO tickwright.scheduled_tasks
         (id, execute_at, task_type, payload, max_attempts, error_message, created_at, priority, timeout_ms, expires_at, attempt_errors, traceparent,
          tags, metadata, awaited, group_key, steps, workflow_id)
  OVERRIDING SYSTEM VALUE
  SELECT g.id, CASE WHEN n.delay IS NULL THEN greatest(g.execute_at, clock_timestamp()) ELSE clock_timestamp() + n.delay END, g.task_type,
         CASE WHEN n.arguments IS NULL THEN g.payload ELSE tickwright.with_results(g.payload, n.arguments) END, g.max_attempts, g.error_message,
         g.created_at, g.priority, g.timeout_ms, g.expires_at, g.attempt_errors, g.traceparent, g.tags, g.metadata, g.awaited, g.group_key, g.steps, g.workflow_id
    FROM gone g CROSS JOIN LATERAL (SELECT o.delay, o.arguments FROM tickwright.workflow_nodes o WHERE o.id = g.id LIMIT 1) AS n;
  IF retried.ids IS NOT NULL THEN                 -- an insert has a fence of 0
    UPDATE ONLY tickwright.scheduled_tasks t SET fence = u.fence, edits = u.edits
      FROM unnest(retried.ids, retried.fences, retried.edits) AS u (id, fence, edits) WHERE t.id = u.id AND t.id = ANY (retried.ids);
  END IF;
  RETURN unfit;
END $$;
COMMENT ON FUNCTION tickwright.release_waiting(bigint[]) IS
  'Move waiting jobs to the live table, with the results that are their arguments. Returns those that failed instead, because they break a rule of new jobs: an error here would fail their predecessors.';

CREATE FUNCTION tickwright.stall(ids bigint[], free bigint[]) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE tickwright.workflow_nodes n SET stalled = true
    FROM ONLY tickwright.scheduled_tasks_waiting w
   WHERE n.id = ANY (ids) AND n.id <> ALL (coalesce(free, '{}')) AND w.id = n.id;
END $$;
COMMENT ON FUNCTION tickwright.stall(bigint[], bigint[]) IS 'Note waiting jobs whose rows another session has locked: a wait for it could be a deadlock.';

CREATE FUNCTION tickwright.result_of_node(node_id bigint) RETURNS jsonb LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((SELECT t.result FROM tickwright.scheduled_tasks t WHERE t.id = node_id LIMIT 1),
                  (SELECT n.result FROM tickwright.workflow_nodes n WHERE n.id = node_id))
$$;
COMMENT ON FUNCTION tickwright.result_of_node(bigint) IS 'The result of a job of a workflow.';

CREATE FUNCTION tickwright.with_results(payload jsonb, arguments jsonb) RETURNS jsonb LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT payload || coalesce(jsonb_object_agg(a.key, CASE jsonb_typeof(a.value) WHEN 'array' THEN (
           SELECT coalesce(jsonb_agg(coalesce(tickwright.result_of_node(e.id::bigint), 'null') ORDER BY e.place), '[]')
             FROM jsonb_array_elements_text(a.value) WITH ORDINALITY AS e (id, place))
         ELSE coalesce(tickwright.result_of_node((a.value #>> '{}')::bigint), 'null') END), '{}')
    FROM jsonb_each(arguments) AS a
$$;
COMMENT ON FUNCTION tickwright.with_results(jsonb, jsonb) IS 'A payload with the results of nodes; null for one that has none.';

CREATE FUNCTION tickwright.end_waiting(ids bigint[], statuses text[]) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  free bigint[];
BEGIN
  IF coalesce(cardinality(ids), 0) = 0 THEN
    RETURN;
  END IF;
  SELECT array_agg(f.id) INTO free
    FROM (SELECT w.id FROM ONLY tickwright.scheduled_tasks_waiting w WHERE w.id = ANY (ids) FOR UPDATE SKIP LOCKED) AS f;
  IF cardinality(free) IS DISTINCT FROM cardinality(ids) THEN
    PERFORM tickwright.stall(ids, free);
  END IF;
  PERFORM tickwright.keep_waiting(free, ids, statuses, 'dead') WHERE 'failed' = ANY (statuses);
  PERFORM tickwright.keep_waiting(free, ids, statuses, to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD')) WHERE statuses && '{cancelled,skipped}';
END $$;
COMMENT ON FUNCTION tickwright.end_waiting(bigint[], text[]) IS 'End waiting jobs without running them.';

CREATE FUNCTION tickwright.keep_waiting(free bigint[], ids bigint[], statuses text[], place text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF place <> 'dead' THEN
    PERFORM tickwright.ensure_history(clock_timestamp());
  END IF;
  EXECUTE format($q$
    WITH gone AS (
      DELETE FROM ONLY tickwright.scheduled_tasks_waiting w USING unnest($2, $3) AS u (id, status)
       WHERE w.id = ANY ($1) AND w.id = u.id AND (u.status = 'failed') = ($4 = 'dead')
      RETURNING w.*, u.status AS ended
    ), told AS MATERIALIZED (
      SELECT count(pg_notify('tickwright_results', g.id::text)) AS notified FROM gone g WHERE g.awaited
    )
    INSERT INTO tickwright.%I
           (id, execute_at, task_type, payload, status, attempts, max_attempts, error_message, created_at, updated_at, completed_at, priority, timeout_ms,
            expires_at, fence, attempt_errors, traceparent, tags, metadata, edits, group_key, steps)
    SELECT g.id, g.execute_at, g.task_type, g.payload, CASE g.ended WHEN 'failed' THEN 'failed' ELSE 'cancelled' END, g.attempts, g.max_attempts,
           CASE g.ended WHEN 'failed' THEN 'job_unfit: its payload is too large with the results of its predecessors, or it breaks a rule that is younger than it'
                        WHEN 'skipped' THEN 'skipped: it runs only where a predecessor fails, or follows such a job'
                        ELSE coalesce((SELECT format('cancelled: its predecessor %%s (%%s) %%s', p.id, p.name, CASE p.status WHEN 'failed' THEN 'failed' ELSE 'was cancelled' END)
                                         FROM tickwright.workflow_edges x
                                        CROSS JOIN LATERAL (SELECT o.* FROM tickwright.workflow_nodes o WHERE o.id = x.predecessor LIMIT 1) AS p
                                        WHERE x.successor = g.id AND p.status IN ('failed', 'cancelled') ORDER BY p.id LIMIT 1), 'cancelled with its workflow') END,
           g.created_at, clock_timestamp(), clock_timestamp(), g.priority, g.timeout_ms, g.expires_at, g.fence, g.attempt_errors, g.traceparent, g.tags,
           g.metadata, g.edits, g.group_key, g.steps
      FROM gone g, told WHERE told.notified >= 0$q$, 'scheduled_tasks_' || place)
  USING free, ids, statuses, place;
END $$;
COMMENT ON FUNCTION tickwright.keep_waiting IS 'Move waiting jobs that ended without running to the dead letters, or to the history of a day.';

------------------------------------------------------------------------------------------------ what a user does to a waiting job
CREATE FUNCTION tickwright.guard_waiting_job() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.status NOT IN ('pending', 'cancelled') THEN
    RAISE EXCEPTION 'job % waits for other jobs; it cannot be set to %', OLD.id, NEW.status
      USING ERRCODE = 'check_violation', CONSTRAINT = 'scheduled_tasks_waits', HINT = 'Cancel it, or what it waits for.';
  END IF;
  NEW.updated_at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER scheduled_tasks_waiting_guard BEFORE UPDATE OF status ON tickwright.scheduled_tasks_waiting FOR EACH ROW
  WHEN (NEW.status <> OLD.status) EXECUTE FUNCTION tickwright.guard_waiting_job();

CREATE FUNCTION tickwright.retire_waiting_job() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM ONLY tickwright.scheduled_tasks_waiting WHERE id = NEW.id;
  NEW.completed_at := clock_timestamp();
  NEW.error_message := 'cancelled while it waited';
  PERFORM tickwright.keep_job(NEW);
  IF NEW.awaited THEN
    PERFORM pg_notify('tickwright_results', NEW.id::text);
  END IF;
  PERFORM tickwright.note_end(NEW.workflow_id, NEW.id, false);
  RETURN NULL;
END $$;
CREATE TRIGGER scheduled_tasks_waiting_finished AFTER UPDATE OF status ON tickwright.scheduled_tasks_waiting FOR EACH ROW
  WHEN (NEW.status = 'cancelled') EXECUTE FUNCTION tickwright.retire_waiting_job();

-- A trigger fires without the right to execute its function; with it every role could attach it to its own table.
REVOKE EXECUTE ON FUNCTION tickwright.note_ended_job(), tickwright.advance_workflows(), tickwright.retire_waiting_job() FROM PUBLIC;

-- What may be edited, and to what, as of a live job.
DO $$
DECLARE
  one record;
BEGIN
  FOR one IN SELECT pg_get_triggerdef(t.oid) AS text, t.tgname AS name FROM pg_trigger t
              WHERE t.tgrelid = 'tickwright.scheduled_tasks'::regclass
                AND t.tgname IN ('scheduled_tasks_rescheduled', 'scheduled_tasks_expires', 'scheduled_tasks_edited', 'scheduled_tasks_edits') LOOP
    EXECUTE replace(replace(one.text, ' ON tickwright.scheduled_tasks ', ' ON tickwright.scheduled_tasks_waiting '),
                    'TRIGGER ' || one.name, 'TRIGGER ' || replace(one.name, 'scheduled_tasks_', 'scheduled_tasks_waiting_'));
  END LOOP;
END $$;

------------------------------------------------------------------------------------------------ what operators do
CREATE FUNCTION tickwright.cancel_nodes(ids bigint[]) RETURNS integer LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  waiting bigint[];
  live integer;
BEGIN
  SELECT array_agg(n.id) INTO waiting
    FROM tickwright.workflow_nodes n
   WHERE n.id = ANY (ids) AND n.status IS NULL AND EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks_waiting w WHERE w.id = n.id);
  IF waiting IS NOT NULL THEN
    PERFORM tickwright.end_waiting(waiting, array_fill('cancelled'::text, ARRAY[cardinality(waiting)]));
    PERFORM tickwright.end_nodes(waiting, array_fill('cancelled'::text, ARRAY[cardinality(waiting)]));
  END IF;
  UPDATE ONLY tickwright.scheduled_tasks t SET status = 'cancelled'
   WHERE t.id = ANY (ARRAY (SELECT o.id FROM ONLY tickwright.scheduled_tasks o
                             WHERE o.id = ANY (ids) AND o.cancel_requested_at IS NULL ORDER BY o.id FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS live = ROW_COUNT;
  RETURN coalesce(cardinality(waiting), 0) + live;
END $$;
COMMENT ON FUNCTION tickwright.cancel_nodes(bigint[]) IS
  'Cancel nodes of locked workflows: waiting and pending jobs end, running ones are asked to. A live job that is locked stays. Returns how many.';

CREATE FUNCTION tickwright.inside_of(wanted bigint) RETURNS SETOF bigint LANGUAGE sql STABLE AS $$
  WITH RECURSIVE inside AS (
    SELECT w.id FROM tickwright.workflows w WHERE w.id = wanted
    UNION ALL
    SELECT w.id FROM inside i CROSS JOIN LATERAL (SELECT o.id FROM tickwright.workflows o WHERE o.parent_id = i.id OFFSET 0) AS w
  )
  SELECT id FROM inside
$$;
COMMENT ON FUNCTION tickwright.inside_of(bigint) IS 'A workflow, and all inside of it.';

CREATE FUNCTION tickwright.nodes_of(wanted bigint, from_node bigint) RETURNS bigint[] LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ids bigint[];
BEGIN
  IF from_node IS NULL THEN
    SELECT array_agg(n.id) INTO ids
      FROM tickwright.workflows w
     CROSS JOIN LATERAL (SELECT o.id, o.workflow_id FROM tickwright.workflow_nodes o
                          WHERE o.id > w.root_id AND o.id <= (SELECT r.last_id FROM tickwright.workflows r WHERE r.id = w.root_id)
                            AND o.root_id = w.root_id AND NOT o.is_workflow OFFSET 0) AS n
     WHERE w.id = wanted AND n.workflow_id = ANY (ARRAY (SELECT tickwright.inside_of(wanted)));
  ELSE
    WITH RECURSIVE reached AS (
      SELECT from_node AS id
      UNION
      SELECT g.id FROM reached r CROSS JOIN LATERAL (
        SELECT e.successor AS id FROM tickwright.workflow_edges e WHERE e.predecessor = r.id
        UNION ALL
        SELECT n.workflow_id FROM tickwright.workflow_nodes n WHERE n.id = r.id AND n.workflow_id <> n.root_id) AS g
    )
    SELECT array_agg(r.id) INTO ids FROM reached r WHERE EXISTS (SELECT FROM tickwright.workflow_nodes n WHERE n.id = r.id AND NOT n.is_workflow);
  END IF;
  RETURN ids;
END $$;
COMMENT ON FUNCTION tickwright.nodes_of IS 'The jobs of a workflow and of those inside of it; or a job, and all that come after it.';

CREATE FUNCTION tickwright.cancel_workflow(wanted bigint, from_node bigint, why text) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
  PERFORM tickwright.lock_workflows(ARRAY[wanted]);
  IF from_node IS NULL THEN
    UPDATE tickwright.workflows w SET cancelled_at = coalesce(w.cancelled_at, clock_timestamp()), reason = coalesce(w.reason, why)
     WHERE w.id = ANY (ARRAY (SELECT tickwright.inside_of(wanted))) AND w.ended_at IS NULL;
  END IF;
  RETURN tickwright.cancel_nodes(tickwright.nodes_of(wanted, from_node));
END $$;
COMMENT ON FUNCTION tickwright.cancel_workflow IS 'Cancel a workflow and those inside of it; or a job of it, and all that come after it. Returns how many jobs.';

CREATE FUNCTION tickwright.settle_nodes(ids bigint[]) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  acts text[];
  waits integer[];
  ready bigint[];
  over bigint[];
  over_statuses text[];
  unfit bigint[];
BEGIN
  SELECT array_agg(n.id), array_agg(p.open + CASE WHEN n.on_failed = 'wait' THEN p.bad ELSE 0 END),
         array_agg(CASE n.on_failed WHEN 'cancel' THEN CASE WHEN p.bad > 0 THEN 'cancelled' WHEN p.skipped > 0 THEN 'skipped' WHEN p.open = 0 THEN 'ready' END
                                    WHEN 'wait' THEN CASE WHEN p.skipped > 0 THEN 'skipped' WHEN p.open + p.bad = 0 THEN 'ready' END
                                    WHEN 'run' THEN CASE WHEN p.open = 0 THEN 'ready' END
                                    ELSE CASE WHEN p.bad > 0 THEN 'ready' WHEN p.open = 0 THEN 'skipped' END END)
    INTO ids, waits, acts
    FROM tickwright.workflow_nodes n
   CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE q.status IS NULL) AS open, count(*) FILTER (WHERE q.status IN ('failed', 'cancelled')) AS bad,
                              count(*) FILTER (WHERE q.status = 'skipped') AS skipped
                         FROM tickwright.workflow_edges e
                        CROSS JOIN LATERAL (SELECT o.status FROM tickwright.workflow_nodes o WHERE o.id = e.predecessor LIMIT 1) AS q
                        WHERE e.successor = n.id) AS p
   WHERE n.id = ANY (ids) AND n.status IS NULL AND EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks_waiting w WHERE w.id = n.id);
  UPDATE tickwright.workflow_nodes n SET waits_for = u.waits_for FROM unnest(ids, waits) AS u (id, waits_for) WHERE n.id = u.id AND n.id = ANY (ids);
  SELECT array_agg(u.id) FILTER (WHERE u.act = 'ready'), coalesce(array_agg(u.id) FILTER (WHERE u.act <> 'ready'), '{}'),
         coalesce(array_agg(u.act) FILTER (WHERE u.act <> 'ready'), '{}')
    INTO ready, over, over_statuses FROM unnest(ids, acts) AS u (id, act);
  IF ready IS NOT NULL THEN
    unfit := coalesce(tickwright.release_waiting(ready), '{}');
    over := over || unfit;
    over_statuses := over_statuses || array_fill('failed'::text, ARRAY[cardinality(unfit)]);
  END IF;
  PERFORM tickwright.end_waiting(over, over_statuses);
  PERFORM tickwright.end_nodes(over, over_statuses);
END $$;
COMMENT ON FUNCTION tickwright.settle_nodes(bigint[]) IS 'Decide about waiting nodes of locked workflows by the states of all that they wait for.';

CREATE FUNCTION tickwright.reopen_nodes(ids bigint[]) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  found bigint[];
  inner_ids bigint[];
  of_workflows bigint[];
BEGIN
  SELECT array_agg(n.workflow_id) INTO of_workflows FROM tickwright.workflow_nodes n WHERE n.id = ANY (ids);
  IF of_workflows IS NULL THEN
    RETURN;
  END IF;
  PERFORM tickwright.lock_workflows(of_workflows);
  found := ids;
  WHILE cardinality(found) > 0 LOOP
    WITH opened AS (
      UPDATE tickwright.workflow_nodes n SET status = NULL WHERE n.id = ANY (found) AND n.status IS NOT NULL RETURNING n.workflow_id
    )
    SELECT array_agg(DISTINCT o.workflow_id) INTO of_workflows FROM opened o;
    ids := ids || found;
    WITH counted AS (
      SELECT w.id, w.ended_at, c.*
        FROM tickwright.workflows w
       CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE n.status IS NULL) AS open, count(*) FILTER (WHERE n.status = 'failed') AS failed,
                                  count(*) FILTER (WHERE n.status = 'cancelled') AS cancelled
                             FROM tickwright.workflow_nodes n
                            WHERE n.id > w.root_id AND n.id <= (SELECT r.last_id FROM tickwright.workflows r WHERE r.id = w.root_id)
                              AND n.root_id = w.root_id AND n.workflow_id = w.id) AS c
       WHERE w.id = ANY (of_workflows)
    ), reopened AS (
      UPDATE tickwright.workflows w
         SET open = c.open, failed = c.failed, cancelled = c.cancelled, state = 'running', ended_at = NULL, cancelled_at = NULL, reason = NULL,
             deadline_at = CASE WHEN w.deadline_at > clock_timestamp() THEN w.deadline_at END
        FROM counted c WHERE w.id = c.id AND w.id = ANY (of_workflows)
      RETURNING w.id, w.parent_id, c.ended_at
    )
    SELECT array_agg(r.id) INTO inner_ids FROM reopened r WHERE r.parent_id IS NOT NULL AND r.ended_at IS NOT NULL;
    found := inner_ids;
  END LOOP;
  PERFORM tickwright.settle_nodes(ARRAY (
    SELECT u.id FROM unnest(ids) AS u (id)
     UNION
    SELECT s.id FROM unnest(ids) AS u (id) CROSS JOIN LATERAL tickwright.open_successors(u.id) AS s));
END $$;
COMMENT ON FUNCTION tickwright.reopen_nodes(bigint[]) IS 'Ended nodes whose jobs are back run again, and so do their workflows; what waits for them waits again.';

CREATE FUNCTION tickwright.retry_workflow(wanted bigint, from_node bigint) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  ids bigint[];
  former record;
BEGIN
  PERFORM tickwright.lock_workflows(ARRAY[wanted]);
  SELECT array_agg(n.id) INTO ids FROM tickwright.workflow_nodes n
   WHERE n.id = ANY (tickwright.nodes_of(wanted, from_node)) AND n.status IN ('failed', 'cancelled', 'skipped');
  IF ids IS NULL THEN
    RETURN 0;
  END IF;
  SELECT array_agg(t.id) AS ids, array_agg(t.fence) AS fences, array_agg(t.edits) AS edits INTO former
    FROM tickwright.scheduled_tasks t WHERE t.id = ANY (ids) AND t.status IN ('failed', 'cancelled');
  IF cardinality(former.ids) IS DISTINCT FROM cardinality(ids) THEN
    PERFORM tickwright.refuse_workflow('history_gone', 'the history of some of its jobs is gone; add the workflow again');
  END IF;
  WITH gone AS (
    DELETE FROM tickwright.scheduled_tasks t WHERE t.id = ANY (ids) AND t.status IN ('failed', 'cancelled') RETURNING t.*
  )
  INSERT INTO tickwright.scheduled_tasks_waiting
         (id, execute_at, task_type, payload, max_attempts, error_message, created_at, priority, timeout_ms, expires_at, attempt_errors, traceparent,
          tags, metadata, group_key, steps, workflow_id)
  OVERRIDING SYSTEM VALUE
  SELECT g.id, g.execute_at, g.task_type, g.payload, g.max_attempts, g.error_message, g.created_at, g.priority, g.timeout_ms, g.expires_at,
         g.attempt_errors, g.traceparent, g.tags, g.metadata, g.group_key, g.steps, n.workflow_id
    FROM gone g CROSS JOIN LATERAL (SELECT o.workflow_id FROM tickwright.workflow_nodes o WHERE o.id = g.id LIMIT 1) AS n;
  UPDATE ONLY tickwright.scheduled_tasks_waiting w SET fence = u.fence, edits = u.edits
    FROM unnest(former.ids, former.fences, former.edits) AS u (id, fence, edits) WHERE w.id = u.id AND w.id = ANY (ids) AND (u.fence > 0 OR u.edits IS NOT NULL);
  PERFORM tickwright.reopen_nodes(ids);
  RETURN cardinality(ids);
END $$;
COMMENT ON FUNCTION tickwright.retry_workflow IS
  'Run again what did not complete: of a workflow and those inside of it, or a job and all that come after it. Returns how many jobs.';

CREATE FUNCTION tickwright.sweep_workflows(most integer) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  one record;
  done integer := 0;
BEGIN
  FOR one IN SELECT w.id, w.root_id FROM tickwright.workflows w
              WHERE w.deadline_at <= clock_timestamp() AND w.ended_at IS NULL AND w.cancelled_at IS NULL
              ORDER BY w.deadline_at LIMIT most LOOP
    CONTINUE WHEN NOT tickwright.try_lock_workflow(one.root_id);
    PERFORM tickwright.cancel_workflow(one.id, NULL, 'deadline');
    done := done + 1;
  END LOOP;
  FOR one IN SELECT w.id, w.root_id FROM tickwright.workflows w
              WHERE w.cancelled_at < clock_timestamp() - interval '2 seconds' AND w.ended_at IS NULL ORDER BY w.cancelled_at LIMIT most LOOP
    CONTINUE WHEN NOT tickwright.try_lock_workflow(one.root_id);
    PERFORM tickwright.cancel_nodes(tickwright.nodes_of(one.id, NULL));
  END LOOP;
  FOR one IN SELECT n.root_id, array_agg(n.id) AS ids, array_agg(n.status) AS statuses
               FROM (SELECT o.* FROM tickwright.workflow_nodes o WHERE o.stalled ORDER BY o.id LIMIT most) AS n GROUP BY n.root_id LOOP
    CONTINUE WHEN NOT tickwright.try_lock_workflow(one.root_id);
    UPDATE tickwright.workflow_nodes n SET stalled = false WHERE n.id = ANY (one.ids) AND n.stalled;
    PERFORM tickwright.end_waiting(array_agg(u.id), array_agg(u.status)) FROM unnest(one.ids, one.statuses) AS u (id, status)
      WHERE u.status IS NOT NULL HAVING count(*) > 0;
    PERFORM tickwright.settle_nodes(one.ids);
    done := done + cardinality(one.ids);
  END LOOP;
  RETURN done;
END $$;
COMMENT ON FUNCTION tickwright.sweep_workflows(integer) IS
  'Cancel workflows whose deadline is over, cancel again what was locked, and release what was locked. Returns how many.';

CREATE FUNCTION tickwright.try_lock_workflow(root bigint) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM FROM tickwright.workflows w WHERE w.id = root FOR NO KEY UPDATE SKIP LOCKED;
  RETURN FOUND;
END $$;
COMMENT ON FUNCTION tickwright.try_lock_workflow(bigint) IS 'Lock an outermost workflow, unless it is locked.';

------------------------------------------------------------------------------------------------ new workflows
CREATE FUNCTION tickwright.refuse_workflow(rule text, advice text) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'workflow refused: %', advice USING ERRCODE = 'check_violation', CONSTRAINT = 'workflows_' || rule, HINT = advice;
END $$;
COMMENT ON FUNCTION tickwright.refuse_workflow IS 'Refuse a definition of a workflow.';

CREATE FUNCTION tickwright.add_workflow(definition jsonb) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
  root bigint := nextval('tickwright.scheduled_tasks_id_seq');
  known bigint;
BEGIN
  PERFORM tickwright.check_workflow(definition);
  IF definition ->> 'key' IS NOT NULL THEN
    INSERT INTO tickwright.workflows (id, root_id, last_id, name, key, digest, deadline_at)
    VALUES (root, root, root, definition ->> 'name', definition ->> 'key', sha256(convert_to(definition::text, 'UTF8')),
            clock_timestamp() + CAST(definition ->> 'deadline' AS interval))
    ON CONFLICT (key) WHERE key IS NOT NULL DO NOTHING;
    IF NOT FOUND THEN
      SELECT w.id INTO known FROM tickwright.workflows w
       WHERE w.key = definition ->> 'key' AND w.digest = sha256(convert_to(definition::text, 'UTF8'));
      IF NOT FOUND THEN
        PERFORM tickwright.refuse_workflow('key_reused', 'key: it belongs to another workflow; choose another key');
      END IF;
      RETURN known;
    END IF;
  ELSE
    INSERT INTO tickwright.workflows (id, root_id, last_id, name, deadline_at)
    VALUES (root, root, root, definition ->> 'name', clock_timestamp() + CAST(definition ->> 'deadline' AS interval));
  END IF;
  PERFORM tickwright.add_inner_workflows(root, definition -> 'workflows');

  INSERT INTO tickwright.workflow_nodes (id, root_id, workflow_id, name, task_type, on_failed, delay, arguments)
  SELECT nextval('tickwright.scheduled_tasks_id_seq'), root, coalesce(i.id, CASE WHEN j.workflow IS NULL THEN root END),
         coalesce(j.name, j.task_type || '-' || j.place), j.task_type, coalesce(j.on_failed, 'cancel'), j.delay, j.arguments
    FROM ROWS FROM (jsonb_to_recordset(definition -> 'jobs')
                    AS (name text, task_type text, on_failed text, delay interval, arguments jsonb, workflow text)) WITH ORDINALITY
           AS j (name, task_type, on_failed, delay, arguments, workflow, place)
    LEFT JOIN LATERAL (SELECT n.id FROM tickwright.workflow_nodes n WHERE n.root_id = root AND n.name = j.workflow AND n.is_workflow LIMIT 1) AS i ON true
   ORDER BY j.place;

  UPDATE tickwright.workflows w SET nodes = c.nodes, open = c.nodes
    FROM (SELECT n.workflow_id, count(*) AS nodes FROM tickwright.workflow_nodes n WHERE n.root_id = root GROUP BY n.workflow_id) AS c
   WHERE w.id = c.workflow_id;
  WITH RECURSIVE up AS (
    SELECT n.workflow_id AS id, max(n.id) AS last_id FROM tickwright.workflow_nodes n WHERE n.root_id = root AND NOT n.is_workflow GROUP BY n.workflow_id
    UNION ALL
    SELECT w.parent_id, u.last_id FROM up u CROSS JOIN LATERAL (SELECT o.parent_id FROM tickwright.workflows o WHERE o.id = u.id LIMIT 1) AS w
     WHERE w.parent_id IS NOT NULL
  )
  UPDATE tickwright.workflows w SET last_id = l.last_id FROM (SELECT id, max(last_id) AS last_id FROM up GROUP BY id) AS l WHERE w.id = l.id;

  PERFORM tickwright.add_workflow_edges(root, definition -> 'jobs');
  PERFORM tickwright.add_workflow_jobs(root, definition -> 'jobs');
  RETURN root;
EXCEPTION
  WHEN unique_violation THEN
    PERFORM tickwright.refuse_workflow('name_twice', 'jobs: two have one name; names are unique in a workflow and those inside of it');
  WHEN not_null_violation THEN
    PERFORM tickwright.refuse_workflow('unknown_workflow', 'workflow: no entry of workflows has this name');
  WHEN data_exception THEN
    PERFORM tickwright.refuse_workflow('value', SQLERRM);
END $$;
COMMENT ON FUNCTION tickwright.add_workflow(jsonb) IS
  'Add a workflow: {"name", "jobs": [{"name", "task_type", "payload", "after": [names], …}]}. Returns its id. See docs/workflows.md.';
REVOKE EXECUTE ON FUNCTION tickwright.add_workflow(jsonb) FROM PUBLIC;

CREATE FUNCTION tickwright.check_workflow(definition jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  wrong text;
BEGIN
  IF jsonb_typeof(definition) IS DISTINCT FROM 'object' OR jsonb_typeof(definition -> 'jobs') IS DISTINCT FROM 'array'
     OR jsonb_typeof(definition -> 'name') IS DISTINCT FROM 'string' OR coalesce(jsonb_typeof(definition -> 'workflows'), 'array') <> 'array' THEN
    PERFORM tickwright.refuse_workflow('shape', 'write an object with a name and an array of jobs');
  END IF;
  IF pg_column_size(definition) > 67108864 THEN
    PERFORM tickwright.refuse_workflow('too_large', 'a definition has at most 64 MiB; keep large payloads elsewhere');
  END IF;
  IF jsonb_array_length(definition -> 'jobs') NOT BETWEEN 1 AND 200000 OR coalesce(jsonb_array_length(definition -> 'workflows'), 0) > 10000 THEN
    PERFORM tickwright.refuse_workflow('too_many', 'jobs: 1 to 200,000; workflows: at most 10,000');
  END IF;
  IF length(definition ->> 'name') NOT BETWEEN 1 AND 200 OR length(definition ->> 'key') NOT BETWEEN 1 AND 255 THEN
    PERFORM tickwright.refuse_workflow('name', 'name: 1 to 200 characters; key: 1 to 255');
  END IF;
  IF CAST(definition ->> 'deadline' AS interval) NOT BETWEEN interval '1 second' AND interval '3660 days' THEN
    PERFORM tickwright.refuse_workflow('deadline', 'deadline: 1 second to 3660 days');
  END IF;
  SELECT k.key INTO wrong FROM jsonb_object_keys(definition) AS k (key) WHERE k.key <> ALL ('{name,key,deadline,jobs,workflows}') LIMIT 1;
  IF FOUND THEN
    PERFORM tickwright.refuse_workflow('unknown_field', format('%s: no field of a workflow', left(wrong, 100)));
  END IF;
  SELECT coalesce(bad.name, bad.place::text) INTO wrong
    FROM jsonb_array_elements((definition -> 'jobs') || coalesce(definition -> 'workflows', '[]')) WITH ORDINALITY AS e (entry, place)
   CROSS JOIN LATERAL (SELECT e.entry ->> 'name' AS name, e.place WHERE jsonb_typeof(e.entry) <> 'object') AS bad LIMIT 1;
  IF FOUND THEN
    PERFORM tickwright.refuse_workflow('shape', format('entry %s: write an object', wrong));
  END IF;
  SELECT k.key INTO wrong
    FROM (SELECT e.entry, '{name,task_type,payload,after,arguments,on_failed,workflow,execute_at,delay,priority,max_attempts,timeout,expires_at,tags,metadata,group,traceparent}'::text[] AS fields
            FROM jsonb_array_elements(definition -> 'jobs') AS e (entry)
           UNION ALL
          SELECT e.entry, '{name,after,workflow}' FROM jsonb_array_elements(coalesce(definition -> 'workflows', '[]')) AS e (entry)) AS given
   CROSS JOIN LATERAL jsonb_object_keys(given.entry) AS k (key) WHERE k.key <> ALL (given.fields) LIMIT 1;
  IF FOUND THEN
    PERFORM tickwright.refuse_workflow('unknown_field', format('%s: no field of a job of a workflow', left(wrong, 100)));
  END IF;
  SELECT coalesce(j.name, j.place::text) || CASE
           WHEN j.task_type IS NULL THEN ': task_type is missing'
           WHEN j.name IS NOT NULL AND length(j.name) NOT BETWEEN 1 AND 200 THEN ': name has 1 to 200 characters'
           WHEN j.on_failed IS NOT NULL AND j.on_failed NOT IN ('cancel', 'wait', 'run', 'only') THEN ': on_failed is cancel, wait, run or only'
           WHEN coalesce(jsonb_typeof(j.after), 'array') <> 'array' THEN ': after is an array of names'
           WHEN coalesce(jsonb_typeof(j.arguments), 'object') <> 'object' THEN ': arguments is an object of names'
           WHEN j.arguments IS NOT NULL AND jsonb_typeof(coalesce(j.payload, '{}')) <> 'object' THEN ': with arguments, payload is an object'
           WHEN j.delay NOT BETWEEN interval '0' AND interval '3660 days' THEN ': delay has 0 to 3660 days'
           WHEN j.delay IS NOT NULL AND j.execute_at IS NOT NULL THEN ': give execute_at or delay, not both'
         END INTO wrong
    FROM ROWS FROM (jsonb_to_recordset(definition -> 'jobs')
                    AS (name text, task_type text, on_failed text, after jsonb, arguments jsonb, payload jsonb, delay interval, execute_at timestamptz)) WITH ORDINALITY
           AS j (name, task_type, on_failed, after, arguments, payload, delay, execute_at, place)
   WHERE j.task_type IS NULL OR length(j.name) NOT BETWEEN 1 AND 200 OR j.on_failed NOT IN ('cancel', 'wait', 'run', 'only')
      OR jsonb_typeof(j.after) <> 'array' OR jsonb_typeof(j.arguments) <> 'object'
      OR j.arguments IS NOT NULL AND jsonb_typeof(coalesce(j.payload, '{}')) <> 'object'
      OR j.delay NOT BETWEEN interval '0' AND interval '3660 days' OR j.delay IS NOT NULL AND j.execute_at IS NOT NULL
   LIMIT 1;
  IF FOUND THEN
    PERFORM tickwright.refuse_workflow('job', left('job ' || wrong, 400));
  END IF;
END $$;
COMMENT ON FUNCTION tickwright.check_workflow(jsonb) IS 'Refuse a definition that is no workflow.';

CREATE FUNCTION tickwright.add_inner_workflows(root bigint, inner_workflows jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  wrong text;
BEGIN
  IF coalesce(jsonb_array_length(inner_workflows), 0) = 0 THEN
    RETURN;
  END IF;
  INSERT INTO tickwright.workflow_nodes (id, root_id, workflow_id, name, is_workflow, arguments)
  SELECT nextval('tickwright.scheduled_tasks_id_seq'), root, root, i.name, true, jsonb_build_object('after', i.after, 'workflow', i.workflow)
    FROM jsonb_to_recordset(inner_workflows) AS i (name text, after jsonb, workflow text);
  UPDATE tickwright.workflow_nodes n
     SET workflow_id = coalesce((SELECT p.id FROM tickwright.workflow_nodes p
                                  WHERE p.root_id = root AND p.name = n.arguments ->> 'workflow' AND p.id < n.id), root)
   WHERE n.root_id = root AND n.arguments ->> 'workflow' IS NOT NULL;
  SELECT n.name INTO wrong FROM tickwright.workflow_nodes n
   WHERE n.root_id = root AND n.arguments ->> 'workflow' IS NOT NULL AND n.workflow_id = root LIMIT 1;
  IF FOUND THEN
    PERFORM tickwright.refuse_workflow('unknown_workflow', format('workflow %s: list the workflow that it is in before it', left(wrong, 200)));
  END IF;
  INSERT INTO tickwright.workflows (id, root_id, parent_id, last_id, name)
  SELECT n.id, root, n.workflow_id, n.id, n.name FROM tickwright.workflow_nodes n WHERE n.root_id = root;
END $$;
COMMENT ON FUNCTION tickwright.add_inner_workflows IS 'Add the workflows inside of a new one.';

CREATE FUNCTION tickwright.add_workflow_edges(root bigint, jobs jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  wrong record;
BEGIN
  -- Names that are not known are edges without a predecessor, and so refused.
  BEGIN
    INSERT INTO tickwright.workflow_edges (predecessor, successor)
    SELECT DISTINCT p.id, n.id
      FROM ROWS FROM (jsonb_to_recordset(jobs) AS (name text, task_type text, after jsonb, arguments jsonb)) WITH ORDINALITY
             AS j (name, task_type, after, arguments, place)
     CROSS JOIN LATERAL (SELECT a.name FROM jsonb_array_elements_text(j.after) AS a (name)
                          UNION ALL
                         SELECT v.name FROM jsonb_each(j.arguments) AS g (key, value) CROSS JOIN LATERAL (
                           SELECT g.value #>> '{}' AS name WHERE jsonb_typeof(g.value) <> 'array'
                            UNION ALL
                           SELECT x.name FROM jsonb_array_elements_text(CASE WHEN jsonb_typeof(g.value) = 'array' THEN g.value ELSE '[]' END) AS x (name)) AS v
                         ) AS a
     CROSS JOIN LATERAL (SELECT o.id FROM tickwright.workflow_nodes o
                          WHERE o.root_id = root AND o.name = coalesce(j.name, j.task_type || '-' || j.place) LIMIT 1) AS n
      LEFT JOIN LATERAL (SELECT o.id FROM tickwright.workflow_nodes o WHERE o.root_id = root AND o.name = a.name LIMIT 1) AS p ON true
     WHERE jsonb_typeof(j.after) = 'array' OR j.arguments IS NOT NULL;
  EXCEPTION WHEN not_null_violation THEN
    SELECT coalesce(j.name, j.place::text) AS job, a.name INTO wrong
      FROM ROWS FROM (jsonb_to_recordset(jobs) AS (name text, after jsonb, arguments jsonb)) WITH ORDINALITY AS j (name, after, arguments, place)
     CROSS JOIN LATERAL (SELECT a.name FROM jsonb_array_elements_text(j.after) AS a (name)
                          UNION ALL
                         SELECT jsonb_path_query(j.arguments, 'lax $.*[*]') #>> '{}') AS a
     WHERE NOT EXISTS (SELECT FROM tickwright.workflow_nodes p WHERE p.root_id = root AND p.name = a.name) LIMIT 1;
    PERFORM tickwright.refuse_workflow('unknown_name', format('job %s waits for %s, which is not in the workflow', left(wrong.job, 200), left(wrong.name, 200)));
  END;
  PERFORM tickwright.add_inner_starts(root);
  SELECT s.name AS job, p.name INTO wrong
    FROM tickwright.workflow_nodes s
   CROSS JOIN LATERAL (SELECT e.predecessor FROM tickwright.workflow_edges e WHERE e.successor = s.id OFFSET 0) AS g
   CROSS JOIN LATERAL (SELECT o.* FROM tickwright.workflow_nodes o WHERE o.id = g.predecessor LIMIT 1) AS p
   WHERE s.root_id = root
     AND s.id <= CASE WHEN p.is_workflow THEN (SELECT w.last_id FROM tickwright.workflows w WHERE w.id = p.id) ELSE p.id END LIMIT 1;
  IF FOUND THEN
    PERFORM tickwright.refuse_workflow('order', format('job %s waits for %s, which is not listed before it; list jobs behind those that they wait for. A cycle has no such order',
                                                       left(wrong.job, 200), left(wrong.name, 200)));
  END IF;
  IF 1000000 < (SELECT sum(g.edges) FROM tickwright.workflow_nodes s
              CROSS JOIN LATERAL (SELECT count(*) AS edges FROM tickwright.workflow_edges e WHERE e.successor = s.id) AS g WHERE s.root_id = root) THEN
    PERFORM tickwright.refuse_workflow('too_many', 'after: at most 1,000,000 in total; put one job between large groups');
  END IF;
END $$;
COMMENT ON FUNCTION tickwright.add_workflow_edges IS 'Add what the jobs of a new workflow wait for.';

CREATE FUNCTION tickwright.add_inner_starts(root bigint) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  wrong text;
BEGIN
  SELECT w.name INTO wrong FROM tickwright.workflows w WHERE w.root_id = root AND w.nodes = 0 LIMIT 1;
  IF FOUND THEN
    PERFORM tickwright.refuse_workflow('empty', format('workflow %s: it has no jobs', left(wrong, 200)));
  END IF;
  SELECT a.name INTO wrong
    FROM tickwright.workflow_nodes i CROSS JOIN LATERAL jsonb_array_elements_text(i.arguments -> 'after') AS a (name)
   WHERE i.root_id = root AND i.is_workflow AND jsonb_typeof(i.arguments -> 'after') = 'array'
     AND NOT EXISTS (SELECT FROM tickwright.workflow_nodes p WHERE p.root_id = root AND p.name = a.name) LIMIT 1;
  IF FOUND THEN
    PERFORM tickwright.refuse_workflow('unknown_name', format('a workflow waits for %s, which is not in the workflow', left(wrong, 200)));
  END IF;
  WITH RECURSIVE starts AS (                       -- each workflow, with what its first jobs wait for: its own predecessors, or those of the one around it
    SELECT i.id, CASE WHEN i.arguments -> 'after' @> '[]' THEN i.arguments -> 'after' END AS after
      FROM tickwright.workflow_nodes i WHERE i.root_id = root AND i.is_workflow AND i.workflow_id = root
    UNION ALL
    SELECT i.id, CASE WHEN i.arguments #> '{after,0}' IS NOT NULL THEN i.arguments -> 'after' ELSE s.after END
      FROM starts s CROSS JOIN LATERAL (SELECT w.id FROM tickwright.workflows w WHERE w.parent_id = s.id OFFSET 0) AS w
     CROSS JOIN LATERAL (SELECT o.id, o.arguments FROM tickwright.workflow_nodes o WHERE o.id = w.id LIMIT 1) AS i
  )
  INSERT INTO tickwright.workflow_edges (predecessor, successor)
  SELECT DISTINCT p.id, n.id
    FROM starts s CROSS JOIN LATERAL jsonb_array_elements_text(s.after) AS a (name)
   CROSS JOIN LATERAL (SELECT o.id FROM tickwright.workflow_nodes o WHERE o.root_id = root AND o.name = a.name LIMIT 1) AS p
   CROSS JOIN LATERAL (SELECT o.id FROM tickwright.workflow_nodes o
                        WHERE o.id > s.id AND o.id <= (SELECT w.last_id FROM tickwright.workflows w WHERE w.id = s.id)
                          AND o.root_id = root AND o.workflow_id = s.id AND NOT o.is_workflow
                          AND NOT EXISTS (SELECT FROM tickwright.workflow_edges g WHERE g.successor = o.id) OFFSET 0) AS n;
  UPDATE tickwright.workflow_nodes n SET arguments = NULL WHERE n.root_id = root AND n.is_workflow;
END $$;
COMMENT ON FUNCTION tickwright.add_inner_starts IS 'The first jobs of an inner workflow, which wait for none in it, wait for what the workflow waits for.';

CREATE FUNCTION tickwright.add_workflow_jobs(root bigint, jobs jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  at timestamptz := clock_timestamp();
  wrong text;
BEGIN
  UPDATE tickwright.workflow_nodes n SET waits_for = (SELECT count(*) FROM tickwright.workflow_edges e WHERE e.successor = n.id)
   WHERE n.root_id = root AND EXISTS (SELECT FROM tickwright.workflow_edges e WHERE e.successor = n.id);
  UPDATE tickwright.workflow_nodes n
     SET arguments = (SELECT jsonb_object_agg(a.key, CASE jsonb_typeof(a.value) WHEN 'array' THEN (
                        SELECT coalesce(jsonb_agg(p.id ORDER BY e.place), '[]')
                          FROM jsonb_array_elements_text(a.value) WITH ORDINALITY AS e (name, place)
                          JOIN tickwright.workflow_nodes p ON p.root_id = root AND p.name = e.name)
                      ELSE (SELECT to_jsonb(p.id) FROM tickwright.workflow_nodes p WHERE p.root_id = root AND p.name = a.value #>> '{}') END)
                        FROM jsonb_each(n.arguments) AS a)
   WHERE n.root_id = root AND n.arguments IS NOT NULL;
  WITH given AS (
    SELECT n.id, n.workflow_id, n.waits_for, coalesce(j.execute_at, at + CASE WHEN n.waits_for = 0 THEN coalesce(j.delay, '0') ELSE '0' END) AS execute_at,
           j.task_type, coalesce(j.payload, '{}') AS payload, coalesce(j.max_attempts, y.max_attempts, 3) AS max_attempts, coalesce(j.priority, 0) AS priority,
           (date_part('epoch', j.timeout) * 1000)::integer AS timeout_ms, j.expires_at, j.traceparent, CASE WHEN j.tags IS NOT NULL THEN tickwright.tags_of(jsonb_build_object('tags', j.tags)) END AS tags, j.metadata,
           j."group" AS group_key
      FROM ROWS FROM (jsonb_to_recordset(jobs)
                      AS (name text, task_type text, payload jsonb, execute_at timestamptz, delay interval, priority smallint, max_attempts integer,
                          timeout interval, expires_at timestamptz, tags jsonb, metadata jsonb, "group" text, traceparent text)) WITH ORDINALITY
             AS j (name, task_type, payload, execute_at, delay, priority, max_attempts, timeout, expires_at, tags, metadata, "group", traceparent, place)
     CROSS JOIN LATERAL (SELECT o.id, o.workflow_id, o.waits_for FROM tickwright.workflow_nodes o
                          WHERE o.root_id = root AND o.name = coalesce(j.name, j.task_type || '-' || j.place) LIMIT 1) AS n
      LEFT JOIN tickwright.task_types y ON y.name = j.task_type
  ), live AS (
    INSERT INTO tickwright.scheduled_tasks
           (id, execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, traceparent, tags, metadata, group_key, workflow_id)
    OVERRIDING SYSTEM VALUE
    SELECT g.id, g.execute_at, g.task_type, g.payload, g.max_attempts, g.priority, g.timeout_ms, g.expires_at, g.traceparent, g.tags, g.metadata, g.group_key, g.workflow_id
      FROM given g WHERE g.waits_for = 0
  )
  INSERT INTO tickwright.scheduled_tasks_waiting
         (id, execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, traceparent, tags, metadata, group_key, workflow_id)
  OVERRIDING SYSTEM VALUE
  SELECT g.id, g.execute_at, g.task_type, g.payload, g.max_attempts, g.priority, g.timeout_ms, g.expires_at, g.traceparent, g.tags, g.metadata, g.group_key, g.workflow_id
    FROM given g WHERE g.waits_for > 0;
END $$;
COMMENT ON FUNCTION tickwright.add_workflow_jobs IS 'Add the jobs of a new workflow: those that wait for none are live at once.';
-- What no waiting job may be, as for live ones.
CREATE TRIGGER scheduled_tasks_waiting_new AFTER INSERT ON tickwright.scheduled_tasks_waiting
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION tickwright.refuse_new_jobs();

------------------------------------------------------------------------------------------------ roles that use plain SQL only
-- The rights of the revisions before, with the tables of workflows and the function that adds one.
DO $$ BEGIN
  EXECUTE format('CREATE OR REPLACE VIEW tickwright.app_rights AS %s UNION ALL '
                 'SELECT more.relation, ''SELECT'', NULL FROM (VALUES (''workflows''), (''workflow_nodes''), (''workflow_edges'')) AS more (relation)',
                 rtrim(pg_get_viewdef('tickwright.app_rights'::regclass), ';'));
END $$;
DO $$ BEGIN
  EXECUTE replace(pg_get_functiondef('tickwright.app_role_statements(text)'::regprocedure),
                  'GRANT EXECUTE ON FUNCTION ', 'GRANT EXECUTE ON FUNCTION tickwright.add_workflow(jsonb), ');
END $$;
