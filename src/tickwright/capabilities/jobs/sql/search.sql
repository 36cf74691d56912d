-- name: matches
-- Whether a job matches a filter and the conditions of an action. Text matches the key, the last error, and the payload where the caller
-- may see it.
($1::text[] IS NULL OR {state} = ANY ($1)) AND ($2::text IS NULL OR t.task_type = $2)
AND ($3::timestamptz IS NULL OR t.execute_at >= $3) AND ($4::timestamptz IS NULL OR t.execute_at < $4)
AND ($5::text[] IS NULL OR {key} {fold} ILIKE ($5)[1] OR {error} {fold} ILIKE ($5)[1] OR {payload} {fold} ILIKE ($5)[2])
AND CASE $6::text
      WHEN 'cancel' THEN t.cancel_requested_at IS NULL
      WHEN 'run_now' THEN t.status = 'pending' AND coalesce(t.due_at, t.retry_at, t.execute_at) > now()
      WHEN 'move' THEN t.status = 'pending' AND ($8::timestamptz IS NULL OR t.execute_at <> $8 OR coalesce(t.due_at, t.retry_at, t.execute_at) <> t.execute_at)
      ELSE true END
AND ($7::timestamptz IS NULL OR t.updated_at < $7)
AND ($9::text[] IS NULL OR t.tags @> $9) AND ($10::text IS NULL OR t.metadata @@ CAST($10 AS jsonpath))
AND ($11::text IS NULL OR t.group_key = $11);

-- name: state
-- The state of a job as callers see it.
CASE WHEN t.tableoid = 'tickwright.scheduled_tasks_waiting'::regclass THEN 'waiting' ELSE t.status END;

-- name: masked
-- The text to search for a caller that sees only the hosts of addresses: without what follows a host or a user before it, also where they
-- are escaped. Of an address with escapes before its path, nothing is left.
regexp_replace({text}, '{separator}(?:[^\s"<>/?#\\%&]*@)?(?:([^][\s"<>/?#@:\\%&]*)(?=(?::[0-9]*)?(?:[\s"<>/?#]|\\+/|\\"|$)))?[^\s"<>]*', '://\1', 'gi');

-- name: fold
-- For an ASCII text: the same result as with the database's locale, at a fifth of the cost.
COLLATE "C";

-- name: within
-- For a search among given ids.
AND t.id = ANY ($16::bigint[]);

-- name: search_newest
-- The matches among the next $14 jobs below an id, and how far the search came: the first row whose matches is NULL was not read, because
-- the time ($12) was over. Indexes: the primary keys of the tables of the source, read backwards.
SELECT l.id, l.searched, l.ended, l.matches
  FROM (SELECT t.id, row_number() OVER way AS searched, lead(t.id) OVER way IS NULL AS ended,
               CASE WHEN row_number() OVER way = 1 OR clock_timestamp() < statement_timestamp() + $12::interval
                    THEN coalesce({matches}, false) END AS matches
          FROM {source} t WHERE t.id < $13::bigint {within}
        WINDOW way AS (ORDER BY t.id DESC) ORDER BY t.id DESC LIMIT $14::bigint) AS l
 WHERE l.matches IS NOT FALSE OR l.ended OR l.searched = $14
 ORDER BY l.id DESC LIMIT $15::bigint;

-- name: search_oldest
-- The same upwards: the matches among the next $14 jobs above an id. Indexes: the primary keys of the tables of the source.
SELECT l.id, l.searched, l.ended, l.matches
  FROM (SELECT t.id, row_number() OVER way AS searched, lead(t.id) OVER way IS NULL AS ended,
               CASE WHEN row_number() OVER way = 1 OR clock_timestamp() < statement_timestamp() + $12::interval
                    THEN coalesce({matches}, false) END AS matches
          FROM {source} t WHERE t.id > $13::bigint {within}
        WINDOW way AS (ORDER BY t.id) ORDER BY t.id LIMIT $14::bigint) AS l
 WHERE l.matches IS NOT FALSE OR l.ended OR l.searched = $14
 ORDER BY l.id LIMIT $15::bigint;

-- name: bound_detailed
-- For the next statement of a transaction: only the index finds tags and metadata, and it stops after a time ($1).
SELECT set_config('enable_seqscan', 'off', true), set_config('statement_timeout', $1, true);

-- name: has_tags
-- Whether a job has all of these tags.
t.tags @> $1::text[];

-- name: has_metadata
-- Whether its metadata has these values.
t.metadata @@ CAST($2::text AS jsonpath);

-- name: any_tags
-- For a search without tags.
$1::text[] IS NULL;

-- name: any_metadata
-- For a search without metadata.
$2::text IS NULL;

-- name: detailed
-- Up to $3 jobs of one table with these tags and metadata. Index: that of its tags and metadata.
(SELECT t.id FROM {source} t WHERE {has_tags} AND {has_metadata} LIMIT $3);

-- name: of_type
-- The live jobs of a type, up to $2, where it has few. Index: scheduled_tasks_due.
SELECT t.id FROM ONLY tickwright.scheduled_tasks t
 WHERE t.task_type = $1::text ORDER BY t.task_type, t.priority, coalesce(t.retry_at, t.execute_at) LIMIT $2;

-- name: of_workflow
-- The jobs of a workflow ($1: the outermost one, or the one that they are directly in) below an id, the newest first, at most $3.
-- Indexes: workflows_pkey, workflow_nodes_pkey.
SELECT n.id
  FROM tickwright.workflows w
 CROSS JOIN LATERAL (SELECT o.id FROM tickwright.workflow_nodes o
                      WHERE o.id < least($2::bigint, w.last_id + 1) AND o.id > w.id AND o.root_id = w.root_id AND NOT o.is_workflow
                        AND (w.parent_id IS NULL OR o.workflow_id = w.id)
                      ORDER BY o.id DESC LIMIT $3::bigint) AS n
 WHERE w.id = $1::bigint;

-- name: held_by
-- The jobs that a worker session holds (NULL: any), among the first $3 due ones of each claim range, $2 in all. Index: scheduled_tasks_due,
-- as a reclaim.
WITH RECURSIVE {claim_range}, {counted}
SELECT f.id
  FROM (SELECT due.id, due.owner
          FROM counted AS claim_range CROSS JOIN LATERAL (
            SELECT t.id, t.owner FROM ONLY tickwright.scheduled_tasks t
             WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority
               AND coalesce(t.retry_at, t.execute_at) <= now() + interval '1 minute'
             ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT $3) AS due
         LIMIT $2) AS f
 WHERE f.owner = coalesce($1::bigint, f.owner);

-- name: whole
-- One table of the family, as a part of a union.
SELECT t.*, t.tableoid FROM {source} t;

-- name: days
-- The tables of completed and cancelled jobs, and whether tags and metadata have an index there (revision 0037). Small: a row per day.
SELECT c.relname, to_regclass('tickwright.' || c.relname || '_details') IS NOT NULL AS indexed FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
 WHERE i.inhparent = 'tickwright.scheduled_tasks'::regclass AND c.relname ~ '^scheduled_tasks_[0-9]{8}$' ORDER BY c.relname;

-- name: count_walk
-- How many of the newest $13 jobs match, by status, and how many were read in time. Indexes: the primary keys of the tables of the source,
-- read backwards.
SELECT l.status, count(*) FILTER (WHERE l.matches) AS jobs, count(l.matches) AS searched, count(*) AS seen
  FROM (SELECT {state} AS status,
               CASE WHEN clock_timestamp() < statement_timestamp() + $12::interval THEN coalesce({matches}, false) END AS matches
          FROM {source} t ORDER BY t.id DESC LIMIT $13) AS l
 GROUP BY l.status;

-- name: count_ids
-- How many of these jobs match, by status. Indexes: the primary key of each table of the family.
SELECT {state} AS status, count(*) AS jobs FROM tickwright.scheduled_tasks t
 WHERE t.id = ANY ($12::bigint[]) AND {matches} GROUP BY 1;

-- name: count_live
-- How many of the first $13 live jobs (by claim range, registered types first) are pending and match; of the first $14 due ones of each
-- range, how many are held and match. at_least: there may be more. Index: scheduled_tasks_due.
WITH RECURSIVE claim_range AS (
  (SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
    WHERE t.task_type >= coalesce($2, '') AND t.task_type <= coalesce($2, '~') ORDER BY t.task_type, t.priority LIMIT 1)
  UNION ALL
  SELECT n.task_type, n.priority
    FROM claim_range l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE (t.task_type, t.priority) > (l.task_type, l.priority) AND t.task_type <= coalesce($2, '~')
       ORDER BY t.task_type, t.priority LIMIT 1) AS n
), {known}, walked AS MATERIALIZED (
  SELECT * FROM claim_range LIMIT 1001
), registered AS MATERIALIZED (
  SELECT * FROM known WHERE $2 IS NULL LIMIT 1000
), claim_ranges AS MATERIALIZED (
  SELECT * FROM registered UNION ALL (SELECT * FROM walked EXCEPT SELECT * FROM registered)
), cut AS MATERIALIZED (
  SELECT count(*) > 1000 AS cut FROM walked
), held AS (
  SELECT due.place, due.matches
    FROM claim_ranges CROSS JOIN LATERAL (
      SELECT row_number() OVER (ORDER BY coalesce(t.retry_at, t.execute_at)) AS place,
             CASE WHEN t.status <> 'processing' THEN false
                  WHEN clock_timestamp() < statement_timestamp() + $12::interval THEN coalesce({matches}, false) END AS matches
        FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = claim_ranges.task_type AND t.priority = claim_ranges.priority
         AND coalesce(t.retry_at, t.execute_at) <= now() + interval '10 seconds'
       ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT $14) AS due
   LIMIT $13
), waiting AS (
  SELECT one.matches
    FROM claim_ranges CROSS JOIN LATERAL (
      SELECT CASE WHEN t.status <> 'pending' THEN false
                  WHEN clock_timestamp() < statement_timestamp() + $12::interval THEN coalesce({matches}, false) END AS matches
        FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = claim_ranges.task_type AND t.priority = claim_ranges.priority
       ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT $13) AS one
   LIMIT $13
)
SELECT 'processing' AS status, count(*) FILTER (WHERE matches) AS jobs,
       count(*) >= $13 OR count(matches) < count(*) OR coalesce(max(place), 0) >= $14 OR (SELECT cut FROM cut) AS at_least
  FROM held
UNION ALL
SELECT 'pending', count(*) FILTER (WHERE matches), count(*) >= $13 OR count(matches) < count(*) OR (SELECT cut FROM cut) FROM waiting;

-- name: now
-- The database's clock.
SELECT clock_timestamp();

-- name: lock_many
-- Lock those of the found live jobs that still match, against their claim and their end. Index: scheduled_tasks_pkey.
SELECT t.id, t.status FROM ONLY tickwright.scheduled_tasks t
 WHERE t.id = ANY ($12::bigint[]) AND {matches} ORDER BY t.id FOR UPDATE SKIP LOCKED;

-- name: move_many
-- Move locked pending jobs to an instant, by a shift of their due times, or to now, and end their back-off. Index: scheduled_tasks_pkey.
UPDATE ONLY tickwright.scheduled_tasks t
   SET execute_at = coalesce($2::timestamptz, coalesce(t.due_at, t.retry_at, t.execute_at) + $3::interval, clock_timestamp()), retry_at = NULL,
       updated_at = clock_timestamp()
 WHERE t.id = ANY ($1::bigint[]) AND t.status = 'pending' RETURNING t.id;
