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
cancel_requested_at, fence, owner, request_digest, attempt_errors, traceparent;

-- name: completed
-- A job that completed without a result.
t.id, t.execute_at, t.task_type, t.payload, 'completed', t.attempts, t.max_attempts, NULL, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest, t.attempt_errors, t.traceparent;

-- name: completed_with_result
-- A job that completed with a result.
t.id, t.execute_at, t.task_type, t.payload, 'completed', t.attempts, t.max_attempts, NULL, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, o.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest, t.attempt_errors, t.traceparent;

-- name: failed_with_error
-- A job whose last attempt failed, or whose worker was lost on it.
t.id, t.execute_at, t.task_type, t.payload, 'failed', t.attempts, t.max_attempts, o.error, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest, {attempt}, t.traceparent;

-- name: cancelled
-- A job that its user cancelled while it ran.
t.id, t.execute_at, t.task_type, t.payload, 'cancelled', t.attempts, t.max_attempts, t.error_message, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest, t.attempt_errors, t.traceparent;

-- name: cancelled_after_error
-- A job that its user cancelled while it ran, and whose attempt failed; a last attempt without a start does not count.
t.id, t.execute_at, t.task_type, t.payload, 'cancelled', t.attempts - (t.started_at IS NULL)::integer, t.max_attempts, t.error_message, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest,
CASE WHEN t.started_at IS NULL THEN t.attempt_errors ELSE {attempt} END, t.traceparent;

-- name: cancelled_with_error
-- A job that its worker cancelled, with the reason.
t.id, t.execute_at, t.task_type, t.payload, 'cancelled', t.attempts, t.max_attempts, o.error, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest, t.attempt_errors, t.traceparent;

-- name: cancelled_unstarted
-- A job that was claimed and never started: the attempt does not count.
t.id, t.execute_at, t.task_type, t.payload, 'cancelled', t.attempts - 1, t.max_attempts, o.error, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, NULL,
t.cancel_requested_at, t.fence, NULL, t.request_digest, t.attempt_errors, t.traceparent;
