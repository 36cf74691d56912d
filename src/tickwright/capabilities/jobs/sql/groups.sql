-- name: lock
-- Serialize the claims of a type's groups until the end of the transaction: each statement behind this one sees what the claims before it did. A row, because any
-- user of the database may hold an advisory lock. Index: task_types_pkey.
SELECT name FROM tickwright.task_types WHERE name = $1 FOR NO KEY UPDATE;

-- name: hint
-- Let a claim look at these groups: jobs of theirs that this session held have ended.
INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at)
SELECT $1, u.group_key, clock_timestamp() FROM unnest($2::text[]) AS u (group_key);

-- name: fold
-- Note when to look at the groups in which something changed, and delete the hints that said so, at most 10,000. The instants rise with each call, so that
-- groups take turns. Hints from $3 on; all of them for NULL. $4: groups in which places of the caller ended, or have room. Returns how many groups there were.
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
          UNION ALL SELECT m.group_key, NULL FROM tickwright.job_groups m WHERE m.task_type = $1 AND m.group_key = ANY ($4::text[]) AND m.more) AS n
   GROUP BY n.group_key
  ON CONFLICT (task_type, group_key) DO UPDATE
     SET ready_at = least(g.ready_at, excluded.ready_at),
         from_at = least(g.from_at, (SELECT min(t.due_at) FROM taken t WHERE t.group_key = g.group_key))
  RETURNING 1
)
SELECT count(*) FROM noted;

-- name: busy
-- The places of a group (g) that are taken: of jobs that a claim took and that still run, each found by its id. Those in which the caller has room are free.
SELECT array_agg(h.id) AS ids, array_agg(h.place) AS places,
       array_agg(h.place) FILTER (WHERE t.owner <> $1 OR (g.group_key || chr(10) || h.place) <> ALL ($11::text[])) AS taken
  FROM unnest(g.held, g.places) AS h (id, place) JOIN ONLY tickwright.scheduled_tasks t ON t.id = h.id AND t.status = 'processing' AND t.group_key = g.group_key;

-- name: first_due
-- The jobs of a group that may start, in the order of their due times.
SELECT t.ctid AS at, t.id, t.due_at, tickwright.may_be_long(t.payload) OR tickwright.may_be_long(t.metadata) AS is_long
  FROM ONLY tickwright.scheduled_tasks t
 WHERE t.task_type = $2 AND t.group_key = g.group_key AND t.due_at >= g.from_at AND t.due_at <= now() + $5::interval AND t.status = 'pending'
 ORDER BY t.due_at LIMIT room.jobs_max FOR UPDATE SKIP LOCKED;

-- name: first_in_order
-- The jobs of a group that may start, by their ids: those before the first that is not due or that another session has locked. Where the group continues
-- behind failed attempts, it passes those that wait for a retry.
SELECT u.at, u.id, u.due_at, u.is_long
  FROM (SELECT l.*, bool_and(l.is_due AND free.id IS NOT NULL) OVER (ORDER BY l.id) AS follows
          FROM (SELECT t.ctid AS at, t.id, t.due_at, t.due_at <= now() + $5::interval AS is_due,
                       tickwright.may_be_long(t.payload) OR tickwright.may_be_long(t.metadata) AS is_long
                  FROM ONLY tickwright.scheduled_tasks t
                 WHERE t.task_type = $2 AND t.group_key = g.group_key AND t.due_at IS NOT NULL AND t.status = 'pending'
                   AND NOT (kind.group_order = 'continue' AND t.attempts > 0 AND t.due_at > now() + $5::interval)
                 ORDER BY t.id LIMIT room.jobs_max) AS l
          LEFT JOIN LATERAL (SELECT t.id FROM ONLY tickwright.scheduled_tasks t WHERE t.ctid = l.at AND t.id = l.id FOR UPDATE SKIP LOCKED) AS free ON true) AS u
 WHERE u.follows ORDER BY u.id;

-- name: claim
-- Take due jobs of the groups of one type: of each group that is ready, in turns, as many as its limit, its rate and $4 (how many may follow one another in one
-- place) allow, $3 in all. In the transaction of ``lock`` and ``fold``. As ``claim`` (claims.sql): the session, long payloads, a type that waits. $8: the type
-- is one of ordered groups; nothing is taken where that has changed. $10: rates hold. $11: the places in which the caller has room for more behind its jobs, each as group, newline, number. Which jobs run is read from their rows, so that a limit holds whatever job_groups says.
-- A row without an id follows: execute_s is the clock, due_s when to claim again, attempts is 1 where that is at once; the places and, at a rate, the
-- starts of the jobs, and the groups with more. A join of the jobs with these would be planned for few. Indexes: job_groups_ready,
-- scheduled_tasks_pkey, scheduled_tasks_grouped or scheduled_tasks_in_order, scheduled_tasks_dead_grouped.
WITH session AS MATERIALIZED (
  SELECT w.id FROM tickwright.workers w WHERE w.id = $1 AND w.lost_at IS NULL AND w.claims_from <= $6 FOR KEY SHARE
), kind AS MATERIALIZED (
  SELECT CASE WHEN k.group_order IS NULL THEN k.group_limit ELSE 1 END AS places_max, CASE WHEN $10::boolean THEN k.group_rate_per_s END AS rate, k.group_order,
         greatest(interval '0.5 s', make_interval(secs => 1 / k.group_rate_per_s)) AS ahead,
         ARRAY (SELECT n FROM generate_series(1, CASE WHEN k.group_order IS NULL THEN k.group_limit ELSE 1 END) AS n) AS all_places
    FROM tickwright.task_types k CROSS JOIN session
   WHERE k.name = $2 AND k.paused_at IS NULL AND k.gone_at IS NULL AND (k.group_order IS NOT NULL) = $8::boolean
), found AS MATERIALIZED (
  SELECT f.*, row_number() OVER way AS seq, f.id IS NOT NULL AND count(f.id) FILTER (WHERE f.is_long) OVER way <= $7::integer AS fits
    FROM (
      SELECT g.group_key, g.ready_at, g.from_at, free.places AS free_places, room.jobs_max, room.start_at, stop.id AS stopped_by,
             CASE WHEN job.number > 1 THEN NULL ELSE busy.ids END AS busy_ids, CASE WHEN job.number > 1 THEN NULL ELSE busy.places END AS busy_places,
             job.at, job.id, job.due_at, job.is_long, job.number
        FROM kind
       CROSS JOIN LATERAL (
          SELECT * FROM tickwright.job_groups r
           WHERE r.task_type = $2 AND r.ready_at >= coalesce($9::timestamptz, '-infinity') AND r.ready_at <= statement_timestamp() + $5::interval
           ORDER BY r.ready_at LIMIT $3::integer) AS g
       CROSS JOIN LATERAL ({busy}) AS busy
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
                      ELSE least(CASE WHEN kind.places_max IS NULL THEN 64 ELSE cardinality(free.places) * $4::integer END, 1024,
                                 CASE WHEN kind.rate IS NOT NULL
                                      THEN greatest(0, floor(0.000001 + date_part('epoch', now() + kind.ahead - start.start_at) * kind.rate)) END)::integer
                 END AS jobs_max OFFSET 0) AS room
        LEFT JOIN LATERAL (SELECT c.*, row_number() OVER () AS number FROM ({candidates}) AS c) AS job ON true
       LIMIT $3::integer) AS f
  WINDOW way AS (ROWS UNBOUNDED PRECEDING)
), taken AS MATERIALIZED (
  SELECT n.*, CASE WHEN n.free_places <> '{}' THEN n.free_places[1 + (n.number - 1) % cardinality(n.free_places)] END AS place,
         CASE WHEN kind.rate IS NOT NULL THEN greatest(n.due_at, n.start_at + (n.number - 1) * make_interval(secs => 1 / kind.rate)) END AS starts_at
    FROM found n CROSS JOIN kind
), claimed AS (
  UPDATE ONLY tickwright.scheduled_tasks t
     SET status = 'processing', owner = $1, attempts = t.attempts + 1, fence = greatest(t.fence, (SELECT tickwright.fence_floor())) + 1,
         started_at = CASE WHEN t.attempts + 1 < t.max_attempts THEN now() END, updated_at = now(),
         retry_at = nullif(t.due_at, t.execute_at), due_at = NULL
   WHERE t.ctid = ANY (ARRAY (SELECT at FROM taken WHERE fits)::tid[])
  RETURNING t.id, t.task_type, t.payload, t.priority, t.attempts, t.max_attempts, t.fence, t.timeout_ms,
            CASE WHEN t.retry_at IS NOT NULL THEN date_part('epoch', t.execute_at) END AS execute_s,
            date_part('epoch', coalesce(t.retry_at, t.execute_at)) AS due_s,
            date_part('epoch', t.expires_at) AS expires_s, t.traceparent,
            CASE WHEN t.tags IS NOT NULL OR t.metadata IS NOT NULL OR t.workflow_id IS NOT NULL OR t.awaited
                 THEN jsonb_build_object('tags', t.tags, 'metadata', t.metadata, 'workflow', t.workflow_id, 'awaited', t.awaited, 'group', t.group_key)::text
                 ELSE '{"group":' || to_json(t.group_key) || '}' END AS details, t.group_key
), looked AS MATERIALIZED (
  SELECT t.group_key, max(t.stopped_by) AS stopped_by, max(t.start_at) AS start_at, max(cardinality(t.free_places)) AS free, max(t.jobs_max) AS jobs_max,
         max(t.busy_ids) AS busy_ids, max(t.busy_places) AS busy_places,
         count(t.id) AS found, count(t.id) FILTER (WHERE t.fits) AS taken, max(t.due_at) AS last_at, max(t.ready_at) AS ready_at, max(t.from_at) AS from_at,
         max(t.seq) >= $3::integer AND count(t.id) < max(t.jobs_max) AS was_cut, max(t.starts_at) FILTER (WHERE t.fits) AS last_start_at,
         array_agg(t.id) FILTER (WHERE t.fits) AS ids, array_agg(t.place) FILTER (WHERE t.fits) AS places
    FROM taken t GROUP BY t.group_key
), decided AS MATERIALIZED (
  SELECT l.*, CASE WHEN l.was_cut OR l.taken < l.found THEN CASE WHEN kind.places_max IS NULL OR l.taken < l.free THEN statement_timestamp() END
                   WHEN l.stopped_by IS NOT NULL OR kind.places_max IS NOT NULL AND l.free = 0 THEN NULL
                   WHEN kind.rate IS NOT NULL AND l.found >= l.jobs_max THEN
                     greatest(coalesce(l.last_start_at + make_interval(secs => 1 / kind.rate), l.start_at) - kind.ahead / 2, now() + interval '10 ms')
                   WHEN l.found >= l.jobs_max THEN CASE WHEN kind.places_max IS NULL THEN statement_timestamp() END
                   ELSE {next} END AS next_at,
         NOT l.was_cut AND l.taken = l.found AND l.found >= l.jobs_max AND l.found > 0 AS is_full, kind.places_max, kind.rate
    FROM looked l CROSS JOIN kind
), marked AS (
  UPDATE tickwright.job_groups g
     SET ready_at = d.next_at, more = d.was_cut OR d.taken < d.found OR d.found >= d.jobs_max, stopped_by = d.stopped_by,
         from_at = CASE WHEN d.is_full AND NOT $8::boolean THEN d.last_at WHEN d.was_cut OR d.taken < d.found OR d.jobs_max = 0 THEN g.from_at ELSE '-infinity' END,
         free_at = CASE WHEN d.last_start_at IS NULL THEN g.free_at ELSE d.last_start_at + make_interval(secs => 1 / d.rate) END,
         held = CASE WHEN d.places_max IS NULL THEN '{}' ELSE coalesce(d.busy_ids, '{}') || coalesce(d.ids, '{}') END,
         places = CASE WHEN d.places_max IS NULL THEN '{}' ELSE coalesce(d.busy_places, '{}') || coalesce(d.places, '{}')::smallint[] END
    FROM decided d
   WHERE g.task_type = $2 AND g.group_key = d.group_key
)
SELECT c.*, NULL::bigint[] AS ids, NULL::smallint[] AS places, NULL::float8[] AS starts_s, NULL::text[] AS unfinished, NULL::float8 AS looked_s FROM claimed c
UNION ALL
SELECT NULL, NULL, NULL, NULL, ((SELECT count(*) FROM found) >= $3::integer OR EXISTS (SELECT FROM decided d WHERE d.next_at <= statement_timestamp()))::integer, NULL, NULL, NULL,
       date_part('epoch', clock_timestamp()),
       date_part('epoch', least((SELECT min(d.next_at) FROM decided d),
                                (SELECT g.ready_at FROM tickwright.job_groups g
                                  WHERE g.task_type = $2 AND g.ready_at > now() + $5::interval ORDER BY g.ready_at LIMIT 1),
                                (SELECT h.ready_at FROM tickwright.job_group_hints h
                                  WHERE h.task_type = $2 AND h.ready_at > now() + $5::interval ORDER BY h.ready_at LIMIT 1))),
       date_part('epoch', now()), NULL, NULL, NULL, p.ids, p.places, p.starts_s,
       ARRAY (SELECT d.group_key FROM decided d WHERE d.is_full OR d.was_cut OR d.taken < d.found), date_part('epoch', (SELECT max(ready_at) FROM looked))
  FROM (SELECT coalesce(array_agg(t.id), '{}') AS ids, coalesce(array_agg(t.place), '{}')::smallint[] AS places,
               coalesce(array_agg(date_part('epoch', t.starts_at)), '{}') AS starts_s FROM taken t WHERE t.fits) AS p;

-- name: next_due
-- When a group of which all due jobs were taken has its next one. One that another session has locked is claimed after a hint of that session, or of upkeep.
(SELECT CASE WHEN l.from_at > '-infinity' THEN statement_timestamp()
             ELSE (SELECT t.due_at FROM ONLY tickwright.scheduled_tasks t
                    WHERE t.task_type = $2 AND t.group_key = l.group_key AND t.due_at > now() + $5::interval AND t.status = 'pending' ORDER BY t.due_at LIMIT 1) END);

-- name: next_in_order
-- When an ordered group goes on: its first job is due then, or soon where it is due and another session has locked it; an end is noted by a hint.
(SELECT greatest(t.due_at, now() + interval '0.2 s') FROM ONLY tickwright.scheduled_tasks t
  WHERE l.found = 0 AND t.task_type = $2 AND t.group_key = l.group_key AND t.due_at IS NOT NULL AND t.status = 'pending'
  ORDER BY CASE WHEN kind.group_order = 'continue' THEN t.due_at END, t.id LIMIT 1);
