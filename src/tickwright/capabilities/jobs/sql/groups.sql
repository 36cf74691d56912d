-- name: lock
-- Serialize the claims of a type's groups until the end of the transaction: each statement behind this one sees what the claims before it did. A row, because any
-- user of the database may hold an advisory lock. They use indexes only, by plans of their own: with statistics of one large group, or a plan from when there were
-- few, PostgreSQL would read all for each group. Index: task_types_pkey.
SELECT name, set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_memoize', 'off', true),
       set_config('plan_cache_mode', 'force_custom_plan', true)
  FROM tickwright.task_types WHERE name = $1 FOR NO KEY UPDATE;

-- name: hint
-- Let a claim look at these groups: jobs of theirs that this session held have ended.
INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at)
SELECT u.task_type, u.group_key, clock_timestamp() FROM unnest($1::text[], $2::text[]) AS u (task_type, group_key);

-- name: fold
-- Note when to look at the groups in which something changed, and delete the hints that said so, at most 10,000. The instants rise with each call, so that
-- groups take turns. Hints from $3 on; all of them for NULL. $4: groups in which places of the caller ended, or have room; $5: those of them that have room.
-- Their jobs last for half of the horizon, so groups with jobs that are due before come first. Returns how many groups there were.
-- Indexes: job_group_hints_ready, job_groups_pkey.
WITH taken AS (
  DELETE FROM tickwright.job_group_hints
   WHERE ctid = ANY (ARRAY (SELECT h.ctid FROM tickwright.job_group_hints h
                             WHERE h.task_type = $1 AND h.ready_at >= coalesce($3::timestamptz, '-infinity') AND h.ready_at <= statement_timestamp() + $2::interval
                             ORDER BY h.ready_at LIMIT 10000))
  RETURNING group_key, ready_at, due_at
), noted AS (
  INSERT INTO tickwright.job_groups AS g (task_type, group_key, ready_at)
  SELECT $1, n.group_key, greatest(min(n.ready_at), statement_timestamp())
    FROM (SELECT group_key, ready_at FROM taken
          UNION ALL SELECT m.group_key, CASE WHEN m.group_key = ANY ($5::text[]) THEN statement_timestamp() + $2::interval / 2 END
                      FROM tickwright.job_groups m WHERE m.task_type = $1 AND m.group_key = ANY ($4::text[]) AND m.more) AS n
   GROUP BY n.group_key
  ON CONFLICT (task_type, group_key) DO UPDATE
     SET ready_at = least(g.ready_at, excluded.ready_at),
         from_at = least(g.from_at, (SELECT min(t.due_at) FROM taken t WHERE t.group_key = g.group_key))
  RETURNING 1
)
SELECT count(*) FROM noted;

-- name: busy
-- The places of a group (g) that are taken: of jobs that a claim took and that still run, each found by its id. Those in which the caller has room are free. Where
-- the caller has the only place of the group, and says which job runs there now, all behind that one wait there, and none is looked up.
(SELECT g.held[own.first:] AS ids, g.places[own.first:] AS places, NULL::smallint[] AS taken WHERE own.first IS NOT NULL
  UNION ALL
 SELECT array_agg(h.id), array_agg(h.place),
       array_agg(h.place) FILTER (WHERE t.owner <> $1 OR (g.group_key || chr(10) || h.place) <> ALL ($11::text[])) AS taken
  FROM unnest(g.held, g.places) AS h (id, place) JOIN ONLY tickwright.scheduled_tasks t ON t.id = h.id AND t.status = 'processing' AND t.group_key = g.group_key
 HAVING own.first IS NULL);

-- name: first_due
-- The jobs of a group that may start, in the order of their due times.
(SELECT t.ctid AS at, t.id, t.due_at, tickwright.may_be_long(t.payload) OR tickwright.may_be_long(t.metadata) AS is_long
  FROM ONLY tickwright.scheduled_tasks t
 WHERE t.task_type = $2 AND t.group_key = g.group_key AND t.due_at >= g.from_at AND t.due_at <= now() + $5::interval AND t.status = 'pending'
 ORDER BY t.due_at LIMIT room.jobs_max FOR UPDATE SKIP LOCKED);

-- name: first_in_order
-- The jobs of a group that may start, by their ids: those before the first that is not due or that another session has locked. Where the group continues
-- behind failed attempts, it passes those that wait for a retry.
(SELECT u.at, u.id, u.due_at, u.is_long
  FROM (SELECT l.*, bool_and(l.is_due AND free.id IS NOT NULL) OVER (ORDER BY l.id) AS follows
          FROM (SELECT t.ctid AS at, t.id, t.due_at, t.due_at <= now() + $5::interval AS is_due,
                       tickwright.may_be_long(t.payload) OR tickwright.may_be_long(t.metadata) AS is_long
                  FROM ONLY tickwright.scheduled_tasks t
                 WHERE t.task_type = $2 AND t.group_key = g.group_key AND t.due_at IS NOT NULL AND t.status = 'pending'
                   AND NOT (kind.group_order = 'continue' AND t.attempts > 0 AND t.due_at > now() + $5::interval)
                 ORDER BY t.id LIMIT room.jobs_max) AS l
          LEFT JOIN LATERAL (SELECT t.id FROM ONLY tickwright.scheduled_tasks t WHERE t.ctid = l.at AND t.id = l.id FOR UPDATE SKIP LOCKED) AS free ON true) AS u
 WHERE u.follows ORDER BY u.id);

-- name: claim
-- Take due jobs of the groups of one type: of each group that is ready, in turns, as many as its limit, its rate and $4 (how many may follow one another in one
-- place) allow, of at most $12 groups, $3 jobs in all. In the transaction of ``lock`` and ``fold``. As ``claim`` (claims.sql): the session, long payloads, a type
-- that waits. $8: the type is one of ordered groups; nothing is taken where that has changed. $9: groups that are ready from then on, NULL for all. $10: rates
-- hold. $11: the places in which the caller has room for more behind its jobs, each as group, newline, number. $15: jobs of a group in one turn; $14: of
-- the groups $13, which have such places. $16: by group, the job that runs in the place of the caller that has room. Which jobs run is read from their rows, so that a
-- limit holds whatever job_groups says. Rows without an id follow: for each group its jobs in their order, their places, its rate, from when on they start, and
-- whether there are more; last a summary: execute_s is the clock, due_s when to claim again, attempts is 1 where that is at once. The jobs of a group are arrays:
-- as rows, they cost the claim twice as much. Indexes: job_groups_ready, scheduled_tasks_pkey, scheduled_tasks_grouped or scheduled_tasks_in_order,
-- scheduled_tasks_dead_grouped.
WITH session AS MATERIALIZED (
  SELECT w.id FROM tickwright.workers w WHERE w.id = $1 AND w.lost_at IS NULL AND w.claims_from <= $6 FOR KEY SHARE
), kind AS MATERIALIZED (
  SELECT CASE WHEN k.group_order IS NULL THEN k.group_limit ELSE 1 END AS places_max, CASE WHEN $10::boolean THEN k.group_rate_per_s END AS rate, k.group_order,
         greatest(interval '0.5 s', make_interval(secs => 1 / k.group_rate_per_s)) AS ahead,
         ARRAY (SELECT n FROM generate_series(1, CASE WHEN k.group_order IS NULL THEN k.group_limit ELSE 1 END) AS n) AS all_places
    FROM tickwright.task_types k CROSS JOIN session
   WHERE k.name = $2 AND k.paused_at IS NULL AND k.gone_at IS NULL AND (k.group_order IS NOT NULL) = $8::boolean
), found AS MATERIALIZED (
  SELECT g.group_key, g.ready_at, g.from_at, busy.ids AS busy_ids, busy.places AS busy_places, free.places AS free, room.jobs_max, room.start_at,
         stop.id AS stopped_by, job.*, sum(job.found) OVER way - job.found AS before, sum(job.longs) OVER way AS longs_so_far
    FROM kind
   CROSS JOIN LATERAL (
      SELECT * FROM tickwright.job_groups r
       WHERE r.task_type = $2 AND r.ready_at >= coalesce($9::timestamptz, '-infinity') AND r.ready_at <= statement_timestamp() + $5::interval
       ORDER BY r.ready_at LIMIT $12::integer) AS g
   CROSS JOIN LATERAL (
      SELECT CASE WHEN kind.places_max = 1 THEN array_position(g.held, ($16::jsonb ->> g.group_key)::bigint) END AS first OFFSET 0) AS own
   CROSS JOIN LATERAL {busy} AS busy
   CROSS JOIN LATERAL (
      SELECT CASE WHEN busy.taken IS NULL THEN kind.all_places
                  ELSE ARRAY (SELECT n FROM unnest(kind.all_places) AS n WHERE n <> ALL (busy.taken)) END AS places OFFSET 0) AS free
    LEFT JOIN LATERAL (
      SELECT d.id FROM tickwright.scheduled_tasks_dead d
       WHERE kind.group_order = 'stop' AND d.task_type = $2 AND d.group_key = g.group_key AND d.id > coalesce(g.passed_id, 0) ORDER BY d.id LIMIT 1) AS stop ON true
   CROSS JOIN LATERAL (
      SELECT greatest(CASE WHEN g.free_at <= now() + 2 * kind.ahead THEN g.free_at END, now()) AS start_at OFFSET 0) AS start
   CROSS JOIN LATERAL (
      SELECT start.start_at,
             CASE WHEN stop.id IS NOT NULL THEN 0
                  ELSE least(CASE WHEN kind.places_max IS NOT NULL THEN cardinality(free.places) * $4::integer END, $3::integer,
                             CASE WHEN g.group_key = ANY ($13::text[]) THEN $14::integer ELSE $15::integer END,
                             CASE WHEN kind.rate IS NOT NULL
                                  THEN greatest(0, floor(0.000001 + date_part('epoch', now() + kind.ahead - start.start_at) * kind.rate)) END)::integer
             END AS jobs_max OFFSET 0) AS room
   CROSS JOIN LATERAL (
      SELECT array_agg(c.at) AS at, array_agg(c.id) AS ids, count(*)::integer AS found, max(c.due_at) AS last_at, array_agg(c.is_long) AS is_long,
             (count(*) FILTER (WHERE c.is_long))::integer AS longs
        FROM {first_due} AS c) AS job
  WINDOW way AS (ROWS UNBOUNDED PRECEDING)
), looked AS MATERIALIZED (
  SELECT f.*, least(f.found, greatest(0, $3::integer - f.before),
                    CASE WHEN f.longs_so_far > $7::integer
                         THEN coalesce((SELECT l.number - 1 FROM unnest(f.is_long) WITH ORDINALITY AS l (is_long, number)
                                         WHERE l.is_long ORDER BY l.number OFFSET greatest(0, $7::integer - f.longs_so_far + f.longs) LIMIT 1), f.found) END)::integer AS taken
    FROM found f WHERE f.before < $3::integer OR f.found = 0
), decided AS MATERIALIZED (
  SELECT l.group_key, l.at[1:l.taken] AS at, l.ids[1:l.taken] AS ids, l.taken, l.busy_ids, l.busy_places, l.stopped_by, l.start_at, l.last_at, l.jobs_max, l.from_at,
         l.taken < l.found AS was_cut, l.found >= l.jobs_max AS is_full, kind.rate, kind.places_max,
         CASE WHEN kind.places_max IS NOT NULL
              THEN ARRAY (SELECT l.free[1 + n % cardinality(l.free)] FROM generate_series(0, l.taken - 1) AS n)::smallint[] END AS places,
         greatest(l.start_at, l.last_at) + l.taken * make_interval(secs => 1 / kind.rate) AS free_at,
         CASE WHEN l.taken < l.found THEN CASE WHEN kind.places_max IS NULL OR l.taken < cardinality(l.free) THEN statement_timestamp() END
              WHEN l.stopped_by IS NOT NULL OR kind.places_max IS NOT NULL AND l.free = '{}' THEN NULL
              WHEN l.found < l.jobs_max THEN {next_due}
              WHEN kind.rate IS NOT NULL THEN
                greatest(coalesce(greatest(l.start_at, l.last_at) + l.taken * make_interval(secs => 1 / kind.rate), l.start_at) - kind.ahead / 2, now() + interval '10 ms')
              WHEN kind.places_max IS NULL THEN statement_timestamp() END AS next_at
    FROM looked l CROSS JOIN kind
), claimed AS (
  UPDATE ONLY tickwright.scheduled_tasks t
     SET status = 'processing', owner = $1, attempts = t.attempts + 1, fence = greatest(t.fence, (SELECT tickwright.fence_floor())) + 1,
         started_at = CASE WHEN t.attempts + 1 < t.max_attempts THEN now() END, updated_at = now(),
         retry_at = nullif(t.due_at, t.execute_at), due_at = NULL
   WHERE t.ctid = ANY (ARRAY (SELECT unnest(d.at) FROM decided d)::tid[])
  RETURNING t.id, t.task_type, t.payload, t.priority, t.attempts, t.max_attempts, t.fence, t.timeout_ms,
            CASE WHEN t.retry_at IS NOT NULL THEN date_part('epoch', t.execute_at) END AS execute_s,
            date_part('epoch', coalesce(t.retry_at, t.execute_at)) AS due_s,
            date_part('epoch', t.expires_at) AS expires_s, t.traceparent,
            CASE WHEN t.tags IS NOT NULL OR t.metadata IS NOT NULL OR t.workflow_id IS NOT NULL OR t.awaited
                 THEN jsonb_build_object('tags', t.tags, 'metadata', t.metadata, 'workflow', t.workflow_id, 'awaited', t.awaited, 'group', t.group_key)::text
                 ELSE '{"group":' || to_json(t.group_key) || '}' END AS details
), marked AS (
  INSERT INTO tickwright.job_groups AS g (task_type, group_key, ready_at, more, stopped_by, from_at, free_at, held, places)
  SELECT $2, d.group_key, d.next_at, d.was_cut OR d.is_full OR $8::boolean AND d.taken > 0, d.stopped_by,
         CASE WHEN d.was_cut OR d.jobs_max = 0 THEN d.from_at WHEN d.is_full AND NOT $8::boolean THEN d.last_at ELSE '-infinity' END,
         CASE WHEN d.taken > 0 THEN d.free_at END,
         CASE WHEN d.places_max IS NULL THEN '{}' ELSE coalesce(d.busy_ids, '{}') || d.ids END,
         CASE WHEN d.places_max IS NULL THEN '{}' ELSE coalesce(d.busy_places, '{}') || d.places END
    FROM decided d
  ON CONFLICT (task_type, group_key) DO UPDATE
     SET ready_at = excluded.ready_at, more = excluded.more, stopped_by = excluded.stopped_by, from_at = excluded.from_at,
         free_at = coalesce(excluded.free_at, g.free_at), held = excluded.held, places = excluded.places
)
SELECT c.*, NULL AS group_key, NULL::bigint[] AS ids, NULL::smallint[] AS places, NULL::float8 AS start_s, NULL::float8 AS rate, NULL::boolean AS more FROM claimed c
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       d.group_key, d.ids, d.places, date_part('epoch', d.start_at), d.rate, d.was_cut OR d.is_full
  FROM decided d WHERE d.taken > 0
UNION ALL
SELECT NULL, NULL, NULL, NULL, ((SELECT count(*) FROM found) >= $12::integer OR EXISTS (SELECT FROM decided d WHERE d.next_at <= statement_timestamp())
                                OR EXISTS (SELECT FROM found f WHERE f.before >= $3::integer))::integer, NULL, NULL, NULL,
       date_part('epoch', clock_timestamp()),
       date_part('epoch', least((SELECT min(d.next_at) FROM decided d),
                                (SELECT g.ready_at FROM tickwright.job_groups g
                                  WHERE g.task_type = $2 AND g.ready_at > now() + $5::interval ORDER BY g.ready_at LIMIT 1),
                                (SELECT h.ready_at FROM tickwright.job_group_hints h
                                  WHERE h.task_type = $2 AND h.ready_at > now() + $5::interval ORDER BY h.ready_at LIMIT 1))),
       date_part('epoch', now()), NULL, NULL, NULL, NULL, NULL, date_part('epoch', (SELECT max(ready_at) FROM looked)), NULL, NULL;

-- name: next_due
-- When a group of which all due jobs were taken has its next one. One that another session has locked is claimed after a hint of that session, or of upkeep.
(SELECT CASE WHEN l.from_at > '-infinity' THEN statement_timestamp()
             ELSE (SELECT t.due_at FROM ONLY tickwright.scheduled_tasks t
                    WHERE t.task_type = $2 AND t.group_key = l.group_key AND t.due_at > now() + $5::interval AND t.status = 'pending' ORDER BY t.due_at LIMIT 1) END);

-- name: next_in_order
-- When an ordered group goes on: its first job is due then, or soon where it is due and another session has locked it; an end is noted by a hint.
(SELECT CASE WHEN t.due_at > now() + $5::interval THEN t.due_at ELSE now() + interval '0.2 s' END FROM ONLY tickwright.scheduled_tasks t
  WHERE l.found = 0 AND t.task_type = $2 AND t.group_key = l.group_key AND t.due_at IS NOT NULL AND t.status = 'pending'
  ORDER BY CASE WHEN kind.group_order = 'continue' THEN t.due_at END, t.id LIMIT 1);
