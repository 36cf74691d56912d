-- name: attempt
-- The errors of a job's last attempts and of the one that ends now (o), at most ten; no start is before its due instant.
jsonb_path_query_array(coalesce(t.attempt_errors, '[]'), '$[last - 8 to last]') || jsonb_build_object(
  'attempt', t.attempts, 'due_at', coalesce(t.retry_at, t.execute_at),
  'started_at', greatest(t.started_at, coalesce(t.retry_at, t.execute_at)), 'ended_at', clock_timestamp(),
  'worker', t.owner, 'fence', t.fence, 'outcome', o.outcome, 'error', left(o.error, 500));

-- name: columns
-- The columns of a job, in the order of the fragments below. A test keeps them equal.
id, execute_at, task_type, payload, status, attempts, max_attempts, error_message, created_at, updated_at,
completed_at, priority, idempotency_key, timeout_ms, expires_at, result, progress, retry_at, started_at,
cancel_requested_at, fence, owner, request_digest, attempt_errors, traceparent, tags, metadata, edits, group_key,
uniqueness, steps;

-- name: job_columns
-- Columns of a job that ends now, which the fragments below share.
t.id, t.execute_at, t.task_type, t.payload;

-- name: request_columns
-- The next ones after its error.
t.created_at, now(), now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at;

-- name: claim_columns
-- The next ones after its start; nothing owns it any more.
t.cancel_requested_at, t.fence, NULL, t.request_digest;

-- name: detail_columns
-- The last ones, behind the errors of its attempts; most are NULL.
t.traceparent, t.tags, t.metadata, t.edits, t.group_key, t.uniqueness, t.steps;

-- name: completed
-- A job that completed without a result.
{job_columns}, 'completed', t.attempts, t.max_attempts, NULL, {request_columns},
t.result, t.progress, t.retry_at, t.started_at, {claim_columns}, t.attempt_errors, {detail_columns};

-- name: completed_with_result
-- A job that completed with a result.
{job_columns}, 'completed', t.attempts, t.max_attempts, NULL, {request_columns},
o.result, t.progress, t.retry_at, t.started_at, {claim_columns}, t.attempt_errors, {detail_columns};

-- name: failed_with_error
-- A job whose last attempt failed, or whose worker was lost on it.
{job_columns}, 'failed', t.attempts, t.max_attempts, o.error, {request_columns},
t.result, t.progress, t.retry_at, t.started_at, {claim_columns}, {attempt}, {detail_columns};

-- name: cancelled
-- A job that its user cancelled while it ran.
{job_columns}, 'cancelled', t.attempts, t.max_attempts, t.error_message, {request_columns},
t.result, t.progress, t.retry_at, t.started_at, {claim_columns}, t.attempt_errors, {detail_columns};

-- name: cancelled_after_error
-- A job that its user cancelled while it ran, and whose attempt failed; a last attempt without a start does not count.
{job_columns}, 'cancelled', t.attempts - (t.started_at IS NULL)::integer, t.max_attempts, t.error_message, {request_columns},
t.result, t.progress, t.retry_at, t.started_at, {claim_columns},
CASE WHEN t.started_at IS NULL THEN t.attempt_errors ELSE {attempt} END, {detail_columns};

-- name: cancelled_with_error
-- A job that its worker cancelled, with the reason.
{job_columns}, 'cancelled', t.attempts, t.max_attempts, o.error, {request_columns},
t.result, t.progress, t.retry_at, t.started_at, {claim_columns}, t.attempt_errors, {detail_columns};

-- name: cancelled_unstarted
-- A job that was claimed and never started: the attempt does not count.
{job_columns}, 'cancelled', t.attempts - 1, t.max_attempts, o.error, {request_columns},
t.result, t.progress, t.retry_at, NULL, {claim_columns}, t.attempt_errors, {detail_columns};

-- name: stopped
-- Of the jobs that a result releases, those with a requested cancel, which end instead.
stopped AS (
  DELETE FROM ONLY tickwright.scheduled_tasks t USING outcome o
   WHERE t.id = o.id AND t.id = ANY ($2::bigint[]) AND t.owner = $1 AND t.fence = o.fence AND t.cancel_requested_at IS NOT NULL
  RETURNING t.*
);
