-- All types of a worker shared its slots, and every worker ran every type that it had a handler for. Now a type belongs to a queue, which an operator
-- can pause as a whole and for which a worker can reserve slots, and may need something of its worker. See docs/adr/0039.
-- Forward on a live system: columns with defaults are added, no row is read. A worker of the release before runs all types of all queues, whatever
-- they need, and does not see that a queue is paused; the claims of new workers do.
ALTER TABLE tickwright.task_types
  ADD COLUMN queue varchar(50) COLLATE "C" NOT NULL DEFAULT 'default',
  ADD COLUMN needs text[] NOT NULL DEFAULT '{}';
COMMENT ON COLUMN tickwright.task_types.queue IS 'The queue of its jobs: workers reserve slots for queues, and operators pause them.';
COMMENT ON COLUMN tickwright.task_types.needs IS 'What a worker must have to run it, such as gpu. Without any, workers that are kept for such types do not run it.';

CREATE TABLE tickwright.queues (
  name       varchar(50) COLLATE "C" PRIMARY KEY,
  paused_at  timestamptz,
  version    integer NOT NULL DEFAULT 1,
  updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE tickwright.queues IS 'Queues that an operator has paused or enabled. Others are only names in task_types.';
COMMENT ON COLUMN tickwright.queues.paused_at IS 'No job of the queue starts until it is enabled; running ones go on.';

CREATE TRIGGER queues_changed AFTER INSERT OR UPDATE OR DELETE ON tickwright.queues
  FOR EACH STATEMENT EXECUTE FUNCTION tickwright.tell_types_changed();

CREATE FUNCTION tickwright.serves(roles text[], facts jsonb, target text, task_type text, queue text, needs text[]) RETURNS boolean
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN target LIKE 'remote:%'
         THEN 'remote' = ANY (roles) AND facts -> 'remote' ->> 'pool' = substr(target, 8) AND coalesce(facts -> 'remote' -> 'types' ? task_type, false)
         ELSE 'worker' = ANY (roles)
     AND (jsonb_typeof(s.scope -> 'queues') IS DISTINCT FROM 'array' OR s.scope -> 'queues' ? queue)
     AND CASE WHEN jsonb_typeof(s.scope -> 'types') = 'array'
              THEN EXISTS (SELECT FROM jsonb_array_elements_text(s.scope -> 'types') AS p (pattern)
                            WHERE CASE WHEN p.pattern LIKE '%*' THEN starts_with(task_type, left(p.pattern, -1)) ELSE task_type = p.pattern END)
              ELSE true END
     AND CASE WHEN jsonb_typeof(s.scope -> 'needs') = 'array' THEN cardinality(needs) > 0 AND s.scope -> 'needs' ?& needs
              ELSE cardinality(needs) = 0 END END
    FROM (SELECT facts -> 'scope' AS scope) AS s
$$;
COMMENT ON FUNCTION tickwright.serves IS 'Whether a worker with these roles and facts of its session runs a task type, as far as its queues, types and needs say, as WorkerScope.serves; a remote one, its pool and its types.';

-- Programs may read the new columns, too. The view keeps whatever else it lists.
DO $$
BEGIN
  EXECUTE 'CREATE OR REPLACE VIEW tickwright.app_rights AS '
       || replace(pg_get_viewdef('tickwright.app_rights'::regclass), 'keep_history paused_at', 'keep_history queue needs paused_at');
END $$;
