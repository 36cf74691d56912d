-- A claim of groups is one call: its three statements behind each other cost a worker five round trips, during which a busy process let the database wait longer
-- than the claim took. The end of a job that a session holds is noted by that session: a trigger for each row cost more than the rest of the end. See
-- docs/adr/0041. Forward on a live system: functions and a trigger are added, a trigger is replaced, no row is read. Workers of the release before claim beside new ones, behind
-- the same lock.
CREATE OR REPLACE TRIGGER scheduled_tasks_left_group AFTER DELETE ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN (OLD.group_key IS NOT NULL AND OLD.owner IS NULL) EXECUTE FUNCTION tickwright.leave_group();
COMMENT ON FUNCTION tickwright.leave_group IS
  'A job with a group that no session holds is deleted, or its dead letter is deleted or runs again: claims look at the group.';

ALTER TABLE tickwright.job_groups ALTER held SET STORAGE EXTERNAL; -- to compress the ids costs more than to store them

-- Indexes only, by plans of their own: with statistics of one large group, or a plan from when there were few, PostgreSQL would read all for each group.
CREATE FUNCTION tickwright.claim_groups(
  token bigint, ticket bigint, type_name text, in_order boolean, at_rates boolean, most_jobs integer, most_groups integer, most_long integer, depth integer,
  turn integer, horizon interval, hints_from timestamptz, ready_from timestamptz, own_groups text[], own_places text[], own_running jsonb, own_turn integer
) RETURNS TABLE (
  id bigint, task_type text, payload jsonb, priority smallint, attempts integer, max_attempts integer, fence bigint, timeout_ms integer, execute_s float8,
  due_s float8, expires_s float8, traceparent text, details text, group_key text, ids bigint[], places smallint[], start_s float8, rate float8, more boolean
) LANGUAGE plpgsql
  SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_memoize = off SET plan_cache_mode = force_custom_plan
  SET lock_timeout = '1s'                                         -- a worker claims of other types meanwhile
AS $$
#variable_conflict use_column
DECLARE
  looks_at timestamptz;                                         -- rises with each claim, unlike the start of its statement
BEGIN
-- A type of which no group is ready costs two index probes and no write: a worker claims often, also while it runs other types only. Indexes: job_group_hints_ready,
-- job_groups_ready.
IF cardinality(own_groups) = 0
   AND NOT EXISTS (SELECT FROM tickwright.job_group_hints h
                    WHERE h.task_type = type_name AND h.ready_at >= coalesce(hints_from, '-infinity') AND h.ready_at <= clock_timestamp() + horizon)
   AND NOT EXISTS (SELECT FROM tickwright.job_groups g
                    WHERE g.task_type = type_name AND g.ready_at >= coalesce(ready_from, '-infinity') AND g.ready_at <= clock_timestamp() + horizon) THEN
  attempts := 0;
  execute_s := date_part('epoch', clock_timestamp());
  due_s := date_part('epoch', least((SELECT g.ready_at FROM tickwright.job_groups g WHERE g.task_type = type_name AND g.ready_at > now() + horizon ORDER BY g.ready_at LIMIT 1),
                                    (SELECT h.ready_at FROM tickwright.job_group_hints h WHERE h.task_type = type_name AND h.ready_at > now() + horizon ORDER BY h.ready_at LIMIT 1)));
  expires_s := date_part('epoch', now());
  RETURN NEXT;
  RETURN;
END IF;

-- Claims of a type's groups exclude each other until the end of the transaction: each statement behind this one sees what the claims before it did. A row, because
-- any user of the database may hold an advisory lock. Index: task_types_pkey.
PERFORM FROM tickwright.task_types k WHERE k.name = type_name FOR NO KEY UPDATE;
looks_at := clock_timestamp();

-- Note when to look at the groups in which something changed, and delete the hints that said so, at most 10,000. The instants rise with each call, so that groups
-- take turns. The jobs in places with room last for a while, so groups with a job that is due within the horizon come first.
-- Indexes: job_group_hints_ready, job_groups_pkey.
WITH taken AS (
  DELETE FROM tickwright.job_group_hints
   WHERE ctid = ANY (ARRAY (SELECT h.ctid FROM tickwright.job_group_hints h
                             WHERE h.task_type = type_name AND h.ready_at >= coalesce(hints_from, '-infinity')
                               AND h.ready_at <= looks_at + horizon
                             ORDER BY h.ready_at LIMIT 10000))
  RETURNING job_group_hints.group_key, ready_at, due_at
)
INSERT INTO tickwright.job_groups AS g (task_type, group_key, ready_at)
SELECT type_name, n.group_key, greatest(min(n.ready_at), looks_at)
  FROM (SELECT t.group_key, t.ready_at FROM taken t
        UNION ALL SELECT m.group_key, CASE WHEN own_running ? m.group_key THEN looks_at + horizon END
                    FROM tickwright.job_groups m WHERE m.task_type = type_name AND m.group_key = ANY (own_groups) AND m.more) AS n
 GROUP BY n.group_key
ON CONFLICT (task_type, group_key) DO UPDATE
   SET ready_at = least(g.ready_at, excluded.ready_at),
       from_at = least(g.from_at, (SELECT min(t.due_at) FROM taken t WHERE t.group_key = g.group_key));

-- Take due jobs of each group that is ready, in turns. Nothing is taken for a session that is declared lost or refuses claims with this number, nor of a type that
-- waits or whose order has changed. Which jobs run is read from their rows, so that a limit holds whatever job_groups says. Rows without an id follow: for each
-- group its jobs in their order, their places, its rate, from when on they start, and whether there are more; last a summary: execute_s is the clock, due_s when to
-- claim again, expires_s the instant of the snapshot, attempts is 1 where another claim may take more at once. The jobs of a group are arrays: as rows, they cost
-- the claim twice as much. Indexes: job_groups_ready, scheduled_tasks_pkey, scheduled_tasks_grouped or scheduled_tasks_in_order, scheduled_tasks_dead_grouped.
RETURN QUERY WITH session AS MATERIALIZED (
  SELECT w.id FROM tickwright.workers w WHERE w.id = token AND w.lost_at IS NULL AND w.claims_from <= ticket FOR KEY SHARE
), kind AS MATERIALIZED (
  SELECT CASE WHEN k.group_order IS NULL THEN k.group_limit ELSE 1 END AS places_max, CASE WHEN at_rates THEN k.group_rate_per_s END AS rate, k.group_order,
         greatest(interval '0.5 s', make_interval(secs => 1 / k.group_rate_per_s)) AS ahead,
         ARRAY (SELECT n FROM generate_series(1, CASE WHEN k.group_order IS NULL THEN k.group_limit ELSE 1 END) AS n) AS all_places
    FROM tickwright.task_types k CROSS JOIN session
   WHERE k.name = type_name AND k.paused_at IS NULL AND k.gone_at IS NULL AND (k.group_order IS NOT NULL) = in_order
     AND NOT EXISTS (SELECT FROM tickwright.queues q WHERE q.name = k.queue AND q.paused_at IS NOT NULL)
), found AS MATERIALIZED (
  SELECT g.group_key, g.ready_at, g.from_at, busy.ids AS busy_ids, busy.places AS busy_places, free.places AS free, room.jobs_max, room.start_at,
         stop.id AS stopped_by, job.*, sum(job.found) OVER way - job.found AS before, sum(job.longs) OVER way AS longs_so_far
    FROM kind
   CROSS JOIN LATERAL (
      SELECT * FROM tickwright.job_groups r
       WHERE r.task_type = type_name AND r.ready_at >= coalesce(ready_from, '-infinity') AND r.ready_at <= looks_at + horizon
       ORDER BY r.ready_at LIMIT most_groups) AS g
   CROSS JOIN LATERAL (
      SELECT CASE WHEN own_running ? g.group_key AND kind.places_max = 1 AND 1 = ALL (g.places)
                   AND EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t
                                WHERE t.id = g.held[cardinality(g.held)] AND t.group_key = g.group_key AND t.status = 'processing' AND t.owner = token)
                  THEN array_position(g.held, (own_running ->> g.group_key)::bigint) END AS first OFFSET 0) AS own
   CROSS JOIN LATERAL (                                         -- the only place of the group is this session's: what waits there behind the running job is not looked up
      SELECT g.held[own.first:] AS ids, g.places[own.first:] AS places, NULL::smallint[] AS taken WHERE own.first IS NOT NULL
      UNION ALL                                                 -- each job that a claim took is looked up; places in which the caller has room are free
      SELECT array_agg(h.id), array_agg(h.place),
             array_agg(h.place) FILTER (WHERE t.owner <> token OR h.place > kind.places_max OR (g.group_key || chr(10) || h.place) <> ALL (own_places))
        FROM unnest(g.held, g.places) AS h (id, place)
        JOIN ONLY tickwright.scheduled_tasks t ON t.id = h.id AND t.status = 'processing' AND t.group_key = g.group_key
      HAVING own.first IS NULL) AS busy
   CROSS JOIN LATERAL (
      SELECT CASE WHEN busy.taken IS NULL THEN kind.all_places
                  ELSE ARRAY (SELECT n FROM unnest(kind.all_places) AS n WHERE n <> ALL (busy.taken)
                              LIMIT greatest(0, kind.places_max - (SELECT count(DISTINCT b.place) FROM unnest(busy.taken) AS b (place)))) END AS places OFFSET 0) AS free
    LEFT JOIN LATERAL (
      SELECT d.id FROM tickwright.scheduled_tasks_dead d
       WHERE kind.group_order = 'stop' AND d.task_type = type_name AND d.group_key = g.group_key AND d.id > coalesce(g.passed_id, 0) ORDER BY d.id LIMIT 1) AS stop ON true
   CROSS JOIN LATERAL (
      SELECT greatest(CASE WHEN g.free_at <= now() + 2 * kind.ahead THEN g.free_at END, now()) AS start_at OFFSET 0) AS start
   CROSS JOIN LATERAL (
      SELECT start.start_at,
             CASE WHEN stop.id IS NOT NULL THEN 0
                  ELSE least(CASE WHEN kind.places_max IS NOT NULL THEN cardinality(free.places) * depth END, most_jobs,
                             CASE WHEN g.group_key = ANY (own_groups) THEN own_turn ELSE turn END,
                             CASE WHEN kind.rate IS NOT NULL
                                  THEN greatest(0, floor(0.000001 + date_part('epoch', now() + kind.ahead - start.start_at) * kind.rate)) END)::integer
             END AS jobs_max OFFSET 0) AS room
   CROSS JOIN LATERAL (
      SELECT array_agg(c.at) AS at, array_agg(c.id) AS ids, count(*)::integer AS found, max(c.due_at) AS last_at, array_agg(c.is_long) AS is_long,
             (count(*) FILTER (WHERE c.is_long))::integer AS longs
        FROM (
          SELECT * FROM (                                       -- by their due times
            SELECT t.ctid AS at, t.id, t.due_at, tickwright.may_be_long(t.payload) AS is_long
              FROM ONLY tickwright.scheduled_tasks t
             WHERE NOT in_order AND t.task_type = type_name AND t.group_key = g.group_key AND t.status = 'pending'
               AND t.due_at >= g.from_at AND t.due_at <= now() + horizon
             ORDER BY t.due_at LIMIT room.jobs_max FOR UPDATE SKIP LOCKED) AS any_order
          UNION ALL
          SELECT u.at, u.id, u.due_at, u.is_long FROM (         -- by their ids: those before the first that is not due, or that another session has locked
            SELECT l.*, bool_and(l.is_due AND free.id IS NOT NULL) OVER (ORDER BY l.id) AS follows
              FROM (SELECT t.ctid AS at, t.id, t.due_at, t.due_at <= now() + horizon AS is_due,
                           tickwright.may_be_long(t.payload) AS is_long
                      FROM ONLY tickwright.scheduled_tasks t
                     WHERE in_order AND t.task_type = type_name AND t.group_key = g.group_key AND t.due_at IS NOT NULL AND t.status = 'pending'
                       AND NOT (kind.group_order = 'continue' AND t.attempts > 0 AND t.due_at > now() + horizon)
                     ORDER BY t.id LIMIT room.jobs_max) AS l
              LEFT JOIN LATERAL (SELECT t.id FROM ONLY tickwright.scheduled_tasks t WHERE t.ctid = l.at AND t.id = l.id FOR UPDATE SKIP LOCKED) AS free ON true
             ORDER BY l.id) AS u
           WHERE u.follows) AS c) AS job
  WINDOW way AS (ROWS UNBOUNDED PRECEDING)
), looked AS MATERIALIZED (
  SELECT f.*, least(f.found, greatest(0, most_jobs - f.before),
                    CASE WHEN f.longs_so_far > most_long
                         THEN coalesce((SELECT l.number - 1 FROM unnest(f.is_long) WITH ORDINALITY AS l (is_long, number)
                                         WHERE l.is_long ORDER BY l.number OFFSET greatest(0, most_long - f.longs_so_far + f.longs) LIMIT 1), f.found) END)::integer AS taken
    FROM found f WHERE f.before < most_jobs OR f.found = 0
), decided AS MATERIALIZED (
  SELECT l.group_key, l.at[1:l.taken] AS at, l.ids[1:l.taken] AS ids, l.taken, l.busy_ids, l.busy_places, l.stopped_by, l.start_at, l.last_at, l.jobs_max, l.from_at,
         l.taken < l.found AS was_cut, l.found >= l.jobs_max AS is_full, kind.rate, kind.places_max,
         CASE WHEN kind.places_max IS NOT NULL
              THEN ARRAY (SELECT l.free[1 + n % cardinality(l.free)] FROM generate_series(0, l.taken - 1) AS n)::smallint[] END AS places,
         greatest(l.start_at, l.last_at) + l.taken * make_interval(secs => 1 / kind.rate) AS free_at,
         CASE WHEN l.taken < l.found THEN CASE WHEN kind.places_max IS NULL OR l.taken < cardinality(l.free) THEN looks_at END
              WHEN l.stopped_by IS NOT NULL OR kind.places_max IS NOT NULL AND l.free = '{}' THEN NULL
              WHEN l.found < l.jobs_max THEN (
                CASE WHEN in_order THEN                         -- its first job is due then, or soon where another session has locked it; an end is a hint
                       (SELECT CASE WHEN t.due_at > now() + horizon THEN t.due_at ELSE now() + interval '0.2 s' END FROM ONLY tickwright.scheduled_tasks t
                         WHERE l.found = 0 AND t.task_type = type_name AND t.group_key = l.group_key AND t.due_at IS NOT NULL AND t.status = 'pending'
                         ORDER BY CASE WHEN kind.group_order = 'continue' THEN t.due_at END, t.id LIMIT 1)
                     WHEN l.from_at > '-infinity' THEN looks_at
                     ELSE (SELECT t.due_at FROM ONLY tickwright.scheduled_tasks t
                            WHERE t.task_type = type_name AND t.group_key = l.group_key AND t.due_at > now() + horizon AND t.status = 'pending'
                            ORDER BY t.due_at LIMIT 1) END)     -- one that another session has locked is claimed after its hint, or one of upkeep
              WHEN kind.rate IS NOT NULL THEN
                greatest(coalesce(greatest(l.start_at, l.last_at) + l.taken * make_interval(secs => 1 / kind.rate), l.start_at) - kind.ahead / 2, now() + interval '10 ms')
              WHEN kind.places_max IS NULL THEN looks_at END AS next_at
    FROM looked l CROSS JOIN kind
), claimed AS (
  UPDATE ONLY tickwright.scheduled_tasks t
     SET status = 'processing', owner = token, attempts = t.attempts + 1, fence = greatest(t.fence, (SELECT tickwright.fence_floor())) + 1,
         started_at = CASE WHEN t.attempts + 1 < t.max_attempts THEN now() END, updated_at = now(),
         retry_at = nullif(t.due_at, t.execute_at), due_at = NULL
   WHERE t.ctid = ANY (ARRAY (SELECT unnest(d.at) FROM decided d)::tid[])
  RETURNING t.id, t.task_type::text, t.payload, t.priority, t.attempts, t.max_attempts, t.fence, t.timeout_ms,
            CASE WHEN t.retry_at IS NOT NULL THEN date_part('epoch', t.execute_at) END AS execute_s,
            date_part('epoch', coalesce(t.retry_at, t.execute_at)) AS due_s,
            date_part('epoch', t.expires_at) AS expires_s, t.traceparent,
            CASE WHEN t.tags IS NOT NULL OR t.metadata IS NOT NULL OR t.workflow_id IS NOT NULL OR t.awaited
                 THEN jsonb_build_object('tags', t.tags, 'metadata', t.metadata, 'workflow', t.workflow_id, 'awaited', t.awaited, 'group', t.group_key)::text
                 ELSE '{"group":' || to_json(t.group_key) || '}' END AS details
), marked AS (
  INSERT INTO tickwright.job_groups AS g (task_type, group_key, ready_at, more, stopped_by, from_at, free_at, held, places)
  SELECT type_name, d.group_key, d.next_at, d.was_cut OR d.is_full OR in_order AND d.taken > 0, d.stopped_by,
         CASE WHEN d.was_cut OR d.jobs_max = 0 THEN d.from_at WHEN d.is_full AND NOT in_order THEN d.last_at ELSE '-infinity' END,
         CASE WHEN d.taken > 0 THEN d.free_at END,
         CASE WHEN d.places_max IS NULL THEN '{}' ELSE coalesce(d.busy_ids, '{}') || d.ids END,
         CASE WHEN d.places_max IS NULL THEN '{}' ELSE coalesce(d.busy_places, '{}') || d.places END
    FROM decided d
  ON CONFLICT (task_type, group_key) DO UPDATE
     SET ready_at = excluded.ready_at, more = excluded.more, stopped_by = excluded.stopped_by, from_at = excluded.from_at,
         free_at = coalesce(excluded.free_at, g.free_at), held = excluded.held, places = excluded.places
)
SELECT c.*, NULL::text AS group_key, NULL::bigint[] AS ids, NULL::smallint[] AS places, NULL::float8 AS start_s, NULL::float8 AS rate, NULL::boolean AS more FROM claimed c
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       d.group_key, d.ids, d.places, date_part('epoch', d.start_at), d.rate, d.was_cut OR d.is_full
  FROM decided d WHERE d.taken > 0
UNION ALL
SELECT NULL, NULL, NULL, NULL, ((SELECT count(*) FROM found) >= most_groups OR EXISTS (SELECT FROM decided d WHERE d.next_at <= looks_at)
                                OR EXISTS (SELECT FROM found f WHERE f.before >= most_jobs))::integer, NULL, NULL, NULL,
       date_part('epoch', clock_timestamp()),
       date_part('epoch', least((SELECT min(d.next_at) FROM decided d),
                                (SELECT g.ready_at FROM tickwright.job_groups g
                                  WHERE g.task_type = type_name AND g.ready_at > now() + horizon ORDER BY g.ready_at LIMIT 1),
                                (SELECT h.ready_at FROM tickwright.job_group_hints h
                                  WHERE h.task_type = type_name AND h.ready_at > now() + horizon ORDER BY h.ready_at LIMIT 1))),
       date_part('epoch', now()), NULL, NULL, NULL, NULL, NULL, date_part('epoch', (SELECT max(ready_at) FROM looked)), NULL, NULL;
END $$;
COMMENT ON FUNCTION tickwright.claim_groups IS
  'Claims due jobs of the groups of one type: of each group that is ready, in turns, as many as its limit and its rate allow. most_jobs in all, of most_groups; turn
of a group, own_turn of own_groups, in which places of the caller have ended or have room; depth behind each other in one place. own_places: those places, each as
group, newline, number; own_running: by group, the job that runs in the caller''s place with room. Hints and groups from hints_from and ready_from on; NULL: all.';
REVOKE EXECUTE ON FUNCTION tickwright.claim_groups FROM PUBLIC;

-- A change of what holds for the groups of a type: those that are full, have reached their rate or have stopped are looked at again. Index: job_groups_pkey.
CREATE FUNCTION tickwright.hint_groups() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at)
  SELECT g.task_type, g.group_key, clock_timestamp() FROM tickwright.job_groups g WHERE g.task_type = NEW.name;
  RETURN NULL;
END $$;
COMMENT ON FUNCTION tickwright.hint_groups IS 'The limit, the rate or the order of the groups of a type has changed: claims look at each of them.';
REVOKE EXECUTE ON FUNCTION tickwright.hint_groups() FROM PUBLIC;
CREATE TRIGGER task_types_groups_changed AFTER UPDATE OF group_limit, group_rate_per_s, group_order ON tickwright.task_types FOR EACH ROW
  WHEN ((OLD.group_limit, OLD.group_rate_per_s, OLD.group_order) IS DISTINCT FROM (NEW.group_limit, NEW.group_rate_per_s, NEW.group_order))
  EXECUTE FUNCTION tickwright.hint_groups();
