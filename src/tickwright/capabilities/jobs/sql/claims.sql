-- name: claim
-- Take due rows of the given claim ranges and count their attempts. One statement: the UPDATE owns what the SELECT locks. Nothing
-- is taken for a session that is declared lost or refuses claims with the number $12; its row stays locked against both until this
-- transaction ends. Nothing is taken of a type that waits, or whose queue is paused: a worker that does not listen reads that a few seconds later. A last attempt gets its start in begin_last, not here: one that its worker never began does not count.
-- The ranges are read from the priority $16 downwards, then those above it.
-- Rows without an id follow, in the columns of jobs: the priorities in use in the gaps $9 to $11 between the known ones (an empty gap costs
-- one index probe); the claim ranges $14, $15 that hold no row, with attempts 0; last a summary: execute_s is the clock,
-- due_s the next due instant, expires_s the instant of the snapshot, max_attempts the number of rows that were left over.
-- A claim with a bound skips rows with any lock mark (xmax), because to try their locks costs as much as to claim them. Claims without a
-- bound find later what was skipped needlessly. Awaited and unique rows are not skipped: statements that marked the ones
-- (awaited.sql), or were answered with the others (put_into_pending), left their lock marks. Rows whose payloads may be long as text are taken until there are $13; metadata is at most half as long as a
-- payload that counts as short (metadata_fits). The places
-- of the rows are one array: as rows, they cost the claim 6 % more. Index: scheduled_tasks_due, one scan per claim range.
WITH session AS MATERIALIZED (
  SELECT w.id FROM tickwright.workers w WHERE w.id = $1 AND w.lost_at IS NULL AND w.claims_from <= $12 FOR KEY SHARE
), found AS MATERIALIZED (
  SELECT gap.task_type, top.priority
    FROM unnest($9::text[], $10::smallint[], $11::smallint[]) AS gap (task_type, above, below)
   CROSS JOIN LATERAL (
     SELECT t.priority FROM ONLY tickwright.scheduled_tasks t
      WHERE t.task_type = gap.task_type AND t.priority > gap.above AND t.priority < gap.below
      ORDER BY t.priority DESC LIMIT 1) AS top
), claim_range AS MATERIALIZED (
  SELECT u.task_type, u.priority, CASE WHEN u.due_from_s = 0 THEN '-infinity' ELSE to_timestamp(u.due_from_s) END AS due_from
    FROM session, (SELECT * FROM unnest($4::text[], $5::smallint[], $6::float8[])
                   UNION ALL SELECT task_type, priority, 0 FROM found) AS u (task_type, priority, due_from_s)
   ORDER BY u.priority > $16::smallint, u.priority DESC
), kind AS MATERIALIZED (
  SELECT u.task_type, u.rows_max FROM unnest($2::text[], $3::integer[]) AS u (task_type, rows_max)
   WHERE NOT EXISTS (SELECT FROM tickwright.task_types t LEFT JOIN tickwright.queues q ON q.name = t.queue
                      WHERE t.name = u.task_type AND (t.paused_at IS NOT NULL OR t.gone_at IS NOT NULL OR q.paused_at IS NOT NULL))
), due AS MATERIALIZED (
  SELECT coalesce(array_agg(first.at), '{}') AS at, array_agg(first.at) FILTER (WHERE first.is_long) AS long_at
    FROM (
      SELECT one_type.at, one_type.is_long
        FROM session CROSS JOIN kind
       CROSS JOIN LATERAL (
          SELECT job.at, job.is_long
            FROM claim_range CROSS JOIN LATERAL (
              SELECT t.ctid AS at, tickwright.may_be_long(t.payload) AS is_long
                FROM ONLY tickwright.scheduled_tasks t
               WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority AND t.status = 'pending'
                 AND (claim_range.due_from = '-infinity' OR t.xmax = '0' OR t.awaited OR t.uniqueness IS NOT NULL)
                 AND coalesce(t.retry_at, t.execute_at) >= claim_range.due_from
                 AND coalesce(t.retry_at, t.execute_at) <= now() + $7::interval
               ORDER BY coalesce(t.retry_at, t.execute_at)
               LIMIT kind.rows_max
                 FOR UPDATE SKIP LOCKED) AS job
           WHERE claim_range.task_type = kind.task_type
           LIMIT kind.rows_max) AS one_type
       LIMIT $8) AS first
), picked AS MATERIALIZED (
  SELECT CASE WHEN long_at IS NULL THEN at ELSE ARRAY (
           SELECT counted.at
             FROM (SELECT u.at, count(l.at) OVER (ORDER BY u.place ROWS UNBOUNDED PRECEDING) AS long
                     FROM unnest(due.at) WITH ORDINALITY AS u (at, place) LEFT JOIN unnest(long_at) AS l (at) ON l.at = u.at) AS counted
            WHERE counted.long <= $13) END AS at
    FROM due
), claimed AS (
  UPDATE ONLY tickwright.scheduled_tasks t
     SET status = 'processing', owner = $1, attempts = t.attempts + 1, fence = greatest(t.fence, (SELECT tickwright.fence_floor())) + 1,
         started_at = CASE WHEN t.attempts + 1 < t.max_attempts THEN now() END, updated_at = now()
   WHERE t.ctid = ANY ((SELECT at FROM picked)::tid[])
  RETURNING t.id, t.task_type, t.payload, t.priority, t.attempts, t.max_attempts, t.fence, t.timeout_ms,
            CASE WHEN t.retry_at IS NOT NULL THEN date_part('epoch', t.execute_at) END AS execute_s,
            date_part('epoch', coalesce(t.retry_at, t.execute_at)) AS due_s,
            date_part('epoch', t.expires_at) AS expires_s, t.traceparent,
            CASE WHEN t.tags IS NOT NULL OR t.metadata IS NOT NULL OR t.workflow_id IS NOT NULL OR t.awaited
                 THEN jsonb_build_object('tags', t.tags, 'metadata', t.metadata, 'workflow', t.workflow_id, 'awaited', t.awaited)::text END AS details
)
SELECT * FROM claimed
UNION ALL
SELECT NULL, task_type, NULL, priority, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM found
UNION ALL
SELECT NULL, doubted.task_type, NULL, doubted.priority, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
  FROM unnest($14::text[], $15::smallint[]) AS doubted (task_type, priority)
 WHERE NOT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t WHERE t.task_type = doubted.task_type AND t.priority = doubted.priority)
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, (SELECT cardinality(due.at) - cardinality(picked.at) FROM due, picked), NULL, NULL,
       date_part('epoch', clock_timestamp()),
       (SELECT min(date_part('epoch', next.due))
          FROM claim_range CROSS JOIN LATERAL (
            SELECT coalesce(t.retry_at, t.execute_at) AS due
              FROM ONLY tickwright.scheduled_tasks t
             WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority AND t.status = 'pending'
               AND coalesce(t.retry_at, t.execute_at) > now() + $7::interval AND coalesce(t.retry_at, t.execute_at) < 'infinity'
             ORDER BY coalesce(t.retry_at, t.execute_at)
             LIMIT 1) AS next),
       date_part('epoch', now()), NULL, NULL;

-- name: check_held
-- Of the jobs that a session runs, those that it must stop, with the reason (cancelled by a user, or no longer held by it), and those that are
-- awaited. Index: scheduled_tasks_pkey, one probe a job.
SELECT h.id, CASE WHEN t.id IS NULL THEN 'lost' WHEN t.cancel_requested_at IS NOT NULL THEN 'cancel' END AS reason, coalesce(t.awaited, false) AS awaited
  FROM unnest($2::bigint[]) AS h (id)
  LEFT JOIN ONLY tickwright.scheduled_tasks t ON t.id = h.id AND t.owner = $1
 WHERE t.id IS NULL OR t.cancel_requested_at IS NOT NULL OR t.awaited;

-- name: begin_last
-- Write that last attempts begin, before they do, so that a reclaim counts them. Idempotent. Fenced, also by the job's fence. Returns the
-- held ones, and whether they begin. A row that another session has locked does not, because waiting for it would delay the others. Index:
-- scheduled_tasks_pkey.
WITH asked AS MATERIALIZED (
  SELECT * FROM unnest($2::bigint[], $3::bigint[]) AS u (id, fence)
), free AS MATERIALIZED (
  SELECT t.id FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY ($2::bigint[]) AND t.owner = $1 FOR NO KEY UPDATE SKIP LOCKED
), begun AS (
  UPDATE ONLY tickwright.scheduled_tasks t SET started_at = coalesce(t.started_at, clock_timestamp())
    FROM asked u WHERE t.id = u.id AND t.id = ANY (ARRAY (SELECT id FROM free)) AND t.owner = $1 AND t.fence = u.fence
  RETURNING t.id
)
SELECT id, true AS begins FROM begun
UNION ALL
SELECT t.id, false FROM asked u JOIN ONLY tickwright.scheduled_tasks t ON t.id = u.id AND t.owner = $1 AND t.fence = u.fence
 WHERE t.id = ANY ($2::bigint[]) AND NOT EXISTS (SELECT FROM free f WHERE f.id = t.id);

-- name: lock_unlocked
-- Lock those of the jobs $2 that the session $1 holds, and return those whose rows another session has locked. The first statement of a
-- transaction that writes results without waiting for a row. Index: scheduled_tasks_pkey.
WITH free AS MATERIALIZED (
  SELECT t.id FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY ($2::bigint[]) AND t.owner = $1 FOR UPDATE SKIP LOCKED
)
SELECT t.id FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY ($2::bigint[]) AND t.owner = $1
EXCEPT SELECT id FROM free;

-- name: allow_long_statement
-- For the transaction of reclaim or release_unknown. Both read all that is due, which beside millions of large payloads exceeds the limit of a
-- statement.
SET LOCAL statement_timeout = '15min';

-- name: reclaim
-- Release the jobs of lost sessions, in the transaction that declared them lost. The attempt stays counted, and a job without attempts left
-- fails; a last attempt that did not begin does not count. Rows that another session has locked are left to return_stuck (upkeep.sql),
-- because all others would wait for them. Groups in which a lost session may have ended a job without a claim behind that are looked at again: all that wait for
-- an end. Index: scheduled_tasks_due (a claim reaches at most a few seconds ahead).
WITH RECURSIVE {claim_range}, {claimable}, outcome AS MATERIALIZED (
  SELECT 'lost' AS outcome, $2::text AS error
), held AS MATERIALIZED (
  SELECT t.id
    FROM claimable AS claim_range JOIN ONLY tickwright.scheduled_tasks t ON t.task_type = claim_range.task_type AND t.priority = claim_range.priority
   WHERE coalesce(t.retry_at, t.execute_at) <= now() + interval '1 minute' AND t.owner = ANY ($1::bigint[])
     FOR UPDATE OF t SKIP LOCKED
), over AS (
  DELETE FROM ONLY tickwright.scheduled_tasks t
   WHERE t.id = ANY (ARRAY (SELECT id FROM held)) AND t.owner = ANY ($1::bigint[])
     AND (t.attempts >= t.max_attempts AND t.started_at IS NOT NULL OR t.cancel_requested_at IS NOT NULL)
  RETURNING t.*
), hinted AS (
  INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at)
  SELECT u.task_type, u.group_key, clock_timestamp()
    FROM (SELECT t.task_type, t.group_key FROM over t WHERE t.group_key IS NOT NULL
          UNION SELECT g.task_type, g.group_key FROM tickwright.job_groups g WHERE g.more AND g.ready_at IS NULL AND g.stopped_by IS NULL) AS u
), dead AS (
  INSERT INTO tickwright.scheduled_tasks_dead ({columns})
  SELECT {failed_with_error} FROM over t CROSS JOIN outcome o WHERE t.cancel_requested_at IS NULL
), stopped AS (
  INSERT INTO tickwright.{history} ({columns})
  SELECT {cancelled_after_error} FROM over t CROSS JOIN outcome o WHERE t.cancel_requested_at IS NOT NULL
), back AS (
  UPDATE ONLY tickwright.scheduled_tasks t
     SET status = 'pending', owner = NULL, updated_at = now(), attempts = t.attempts - (t.started_at IS NULL)::integer,
         error_message = CASE WHEN t.started_at IS NULL THEN t.error_message ELSE o.error END,
         attempt_errors = CASE WHEN t.started_at IS NULL THEN t.attempt_errors ELSE {attempt} END
    FROM outcome o
   WHERE t.id = ANY (ARRAY (SELECT id FROM held)) AND t.owner = ANY ($1::bigint[])
     AND (t.attempts < t.max_attempts OR t.started_at IS NULL) AND t.cancel_requested_at IS NULL
  RETURNING 1
)
SELECT (SELECT count(*) FROM back) AS returned, (SELECT count(*) FROM over) AS ended;

-- name: release_unknown
-- Release the jobs of the session $1 that it does not know, because the result of their claim was lost; no attempt is counted. A job with a
-- requested cancel ends instead. Known are the jobs $2 at the fence $3[i], or at any fence where that is 0. Call it after refuse_claims.
-- Returns how many, and the jobs whose rows another session has locked. Index: scheduled_tasks_due (a claim reaches at most a few seconds
-- ahead).
WITH RECURSIVE {claim_range}, {claimable}, unknown AS MATERIALIZED (
  SELECT t.id, t.fence
    FROM claimable AS claim_range JOIN ONLY tickwright.scheduled_tasks t ON t.task_type = claim_range.task_type AND t.priority = claim_range.priority
   WHERE coalesce(t.retry_at, t.execute_at) <= now() + interval '1 minute' AND t.owner = $1
     AND NOT EXISTS (SELECT FROM unnest($2::bigint[], $3::bigint[]) AS k (id, fence)
                      WHERE k.id = t.id AND (k.fence = t.fence OR k.fence = 0))
), free AS MATERIALIZED (
  SELECT t.id FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY (ARRAY (SELECT id FROM unknown)) AND t.owner = $1 FOR UPDATE SKIP LOCKED
), back AS (
  UPDATE ONLY tickwright.scheduled_tasks t
     SET status = 'pending', owner = NULL, attempts = t.attempts - 1, updated_at = clock_timestamp()
   WHERE t.id = ANY (ARRAY (SELECT id FROM free)) AND t.owner = $1 AND t.cancel_requested_at IS NULL
  RETURNING 1
), stopped AS (
  DELETE FROM ONLY tickwright.scheduled_tasks t
   WHERE t.id = ANY (ARRAY (SELECT id FROM free)) AND t.owner = $1 AND t.cancel_requested_at IS NOT NULL
  RETURNING t.*
), hinted AS (
  INSERT INTO tickwright.job_group_hints (task_type, group_key, ready_at)
  SELECT t.task_type, t.group_key, clock_timestamp() FROM stopped t WHERE t.group_key IS NOT NULL GROUP BY 1, 2
), kept AS (
  INSERT INTO tickwright.{history} ({columns})
  SELECT {cancelled_unstarted} FROM stopped t CROSS JOIN (SELECT 'cancelled before it started' AS error) AS o RETURNING 1
)
SELECT (SELECT count(*) FROM back) + (SELECT count(*) FROM kept) AS released,
       ARRAY (SELECT u.id FROM unknown u WHERE NOT EXISTS (SELECT FROM free f WHERE f.id = u.id) ORDER BY u.id) AS locked_ids,
       ARRAY (SELECT u.fence FROM unknown u WHERE NOT EXISTS (SELECT FROM free f WHERE f.id = u.id) ORDER BY u.id) AS locked_fences;

-- name: held
-- What the session $1 holds, at most $2 rows: its jobs among the first 5,000 due ones of each claim range, 20,000 in total. Index:
-- scheduled_tasks_due, as a reclaim.
WITH RECURSIVE {claim_range}
SELECT 'job' AS kind, f.id, f.task_type::text AS name, NULL::integer AS number, f.started_at AS since_at, f.fence, f.attempts::bigint AS count
  FROM (SELECT due.* FROM (SELECT * FROM claim_range LIMIT 1000) AS claim_range CROSS JOIN LATERAL (
          SELECT t.id, t.task_type, t.started_at, t.fence, t.attempts, t.owner FROM ONLY tickwright.scheduled_tasks t
           WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority AND coalesce(t.retry_at, t.execute_at) <= now() + interval '1 minute'
           ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT 5000) AS due LIMIT 20000) AS f
 WHERE f.owner = $1 LIMIT $2;

-- name: owned
-- Whether the session $1 owns a job that a reclaim would release. Index: scheduled_tasks_due, as a reclaim.
WITH RECURSIVE {claim_range}, {claimable}
SELECT EXISTS (SELECT FROM claimable AS claim_range
                 JOIN ONLY tickwright.scheduled_tasks t ON t.task_type = claim_range.task_type AND t.priority = claim_range.priority
                WHERE coalesce(t.retry_at, t.execute_at) <= now() + interval '1 minute' AND t.owner = $1);
