-- name: complete
-- Move completed jobs to the day's history. Fenced by owner: only rows that this session still holds. The ids come as the text of an array: see
-- ClaimStore._write. Index: scheduled_tasks_pkey.
WITH done AS (
  DELETE FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY (CAST($2::text AS bigint[])) AND t.owner = $1 RETURNING t.*
)
INSERT INTO tickwright.{history} ({columns}) SELECT {completed} FROM done t;

-- name: complete_and_forget
-- Delete completed jobs of types that keep no history; ids as above. Fenced by owner. Index: scheduled_tasks_pkey.
DELETE FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY (CAST($2::text AS bigint[])) AND t.owner = $1;

-- name: complete_with_result
-- Move completed jobs with results to the day's history. Fenced by owner. Index: scheduled_tasks_pkey.
WITH outcome AS MATERIALIZED (
  SELECT * FROM unnest($2::bigint[], $3::jsonb[]) AS u (id, result)
), done AS (
  DELETE FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY ($2::bigint[]) AND t.owner = $1 RETURNING t.*
)
INSERT INTO tickwright.{history} ({columns})
SELECT {completed_with_result} FROM done t JOIN outcome o ON o.id = t.id;

-- name: retry
-- Release failed attempts of jobs with attempts left, with a wait by the database's clock; a job with a requested cancel ends instead.
-- Fenced by owner and job fence: a second write changes no later attempt. Index: scheduled_tasks_pkey.
WITH outcome AS MATERIALIZED (
  SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::text[], $6::text[]) AS u (id, fence, wait_s, outcome, error)
), back AS (
  UPDATE ONLY tickwright.scheduled_tasks t
     SET status = 'pending', owner = NULL, error_message = o.error, updated_at = clock_timestamp(),
         retry_at = clock_timestamp() + make_interval(secs => o.wait_s), attempt_errors = {attempt}
    FROM outcome o
   WHERE t.id = o.id AND t.id = ANY ($2::bigint[]) AND t.owner = $1 AND t.fence = o.fence AND t.cancel_requested_at IS NULL
  RETURNING 1
), {stopped}, kept AS (
  INSERT INTO tickwright.{history} ({columns}) SELECT {cancelled_after_error} FROM stopped t JOIN outcome o ON o.id = t.id RETURNING 1
)
SELECT (SELECT count(*) FROM back) + (SELECT count(*) FROM kept);

-- name: fail
-- The last attempt failed: the job becomes a dead letter. Fenced by owner. Index: scheduled_tasks_pkey.
WITH outcome AS MATERIALIZED (
  SELECT * FROM unnest($2::bigint[], $3::text[], $4::text[]) AS u (id, outcome, error)
), over AS (
  DELETE FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY ($2::bigint[]) AND t.owner = $1 RETURNING t.*
)
INSERT INTO tickwright.scheduled_tasks_dead ({columns})
SELECT {failed_with_error} FROM over t JOIN outcome o ON o.id = t.id;

-- name: cancel_held
-- Cancel jobs whose handler stopped at their user's request. Fenced by owner. Index: scheduled_tasks_pkey.
WITH outcome AS MATERIALIZED (
  SELECT * FROM unnest($2::bigint[], $3::text[]) AS u (id, error)
), over AS (
  DELETE FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY ($2::bigint[]) AND t.owner = $1 RETURNING t.*
)
INSERT INTO tickwright.{history} ({columns})
SELECT {cancelled_with_error} FROM over t JOIN outcome o ON o.id = t.id;

-- name: cancel_unstarted
-- Cancel jobs that expired, or that their user cancelled, between claim and start: no attempt is counted. Fenced by owner. Index:
-- scheduled_tasks_pkey.
WITH outcome AS MATERIALIZED (
  SELECT * FROM unnest($2::bigint[], $3::text[]) AS u (id, error)
), over AS (
  DELETE FROM ONLY tickwright.scheduled_tasks t WHERE t.id = ANY ($2::bigint[]) AND t.owner = $1 RETURNING t.*
)
INSERT INTO tickwright.{history} ({columns})
SELECT {cancelled_unstarted} FROM over t JOIN outcome o ON o.id = t.id;

-- name: release
-- Release jobs that were not started; no attempt is counted. A job with a requested cancel ends instead. Fenced by owner and job fence: a
-- second write changes no later attempt. Index: scheduled_tasks_pkey.
WITH outcome AS MATERIALIZED (
  SELECT u.id, u.fence, 'cancelled before it started' AS error FROM unnest($2::bigint[], $3::bigint[]) AS u (id, fence)
), back AS (
  UPDATE ONLY tickwright.scheduled_tasks t
     SET status = 'pending', owner = NULL, attempts = t.attempts - 1, updated_at = clock_timestamp()
    FROM outcome o
   WHERE t.id = o.id AND t.id = ANY ($2::bigint[]) AND t.owner = $1 AND t.fence = o.fence AND t.cancel_requested_at IS NULL
  RETURNING 1
), {stopped}, kept AS (
  INSERT INTO tickwright.{history} ({columns})
  SELECT {cancelled_unstarted} FROM stopped t JOIN outcome o ON o.id = t.id RETURNING 1
)
SELECT (SELECT count(*) FROM back) + (SELECT count(*) FROM kept);

-- name: release_with_error
-- The same for attempts that had started: a shutdown interrupted them, or their endpoint is gone. Fenced by owner and job fence. Index:
-- scheduled_tasks_pkey.
WITH outcome AS MATERIALIZED (
  SELECT u.id, u.fence, 'released' AS outcome, u.error FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS u (id, fence, error)
), back AS (
  UPDATE ONLY tickwright.scheduled_tasks t
     SET status = 'pending', owner = NULL, attempts = t.attempts - 1, updated_at = clock_timestamp(), attempt_errors = {attempt}
    FROM outcome o
   WHERE t.id = o.id AND t.id = ANY ($2::bigint[]) AND t.owner = $1 AND t.fence = o.fence AND t.cancel_requested_at IS NULL
  RETURNING 1
), {stopped}, kept AS (
  INSERT INTO tickwright.{history} ({columns})
  SELECT {cancelled_after_error} FROM stopped t JOIN outcome o ON o.id = t.id RETURNING 1
)
SELECT (SELECT count(*) FROM back) + (SELECT count(*) FROM kept);

-- name: snooze
-- Release jobs whose handler asked to be called again later; no attempt is counted. A job with a requested cancel ends instead. Fenced
-- by owner and job fence: a second write changes no later attempt. Index: scheduled_tasks_pkey.
WITH outcome AS MATERIALIZED (
  SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[]) AS u (id, fence, wait_s)
), back AS (
  UPDATE ONLY tickwright.scheduled_tasks t
     SET status = 'pending', owner = NULL, attempts = t.attempts - 1, updated_at = clock_timestamp(),
         retry_at = clock_timestamp() + make_interval(secs => o.wait_s)
    FROM outcome o
   WHERE t.id = o.id AND t.id = ANY ($2::bigint[]) AND t.owner = $1 AND t.fence = o.fence AND t.cancel_requested_at IS NULL
  RETURNING 1
), {stopped}, kept AS (
  INSERT INTO tickwright.{history} ({columns}) SELECT {cancelled} FROM stopped t RETURNING 1
)
SELECT (SELECT count(*) FROM back) + (SELECT count(*) FROM kept);

-- name: defer
-- The same for attempts that their worker could not run, with the reason.
WITH outcome AS MATERIALIZED (
  SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::float8[], $5::text[]) AS u (id, fence, wait_s, error)
), back AS (
  UPDATE ONLY tickwright.scheduled_tasks t
     SET status = 'pending', owner = NULL, attempts = t.attempts - 1, updated_at = clock_timestamp(), error_message = o.error,
         retry_at = clock_timestamp() + make_interval(secs => o.wait_s)
    FROM outcome o
   WHERE t.id = o.id AND t.id = ANY ($2::bigint[]) AND t.owner = $1 AND t.fence = o.fence AND t.cancel_requested_at IS NULL
  RETURNING 1
), {stopped}, kept AS (
  INSERT INTO tickwright.{history} ({columns}) SELECT {cancelled} FROM stopped t RETURNING 1
)
SELECT (SELECT count(*) FROM back) + (SELECT count(*) FROM kept);

-- name: report_progress
-- Write the progress of a running handler. Fenced by owner and job fence: a late write changes no later attempt. Index:
-- scheduled_tasks_pkey.
UPDATE ONLY tickwright.scheduled_tasks t SET progress = $3::jsonb, updated_at = clock_timestamp()
 WHERE t.id = $2 AND t.owner = $1 AND t.fence = $4;
