-- name: columns
-- The columns of a job, in the order in which the fragments below give them. Kept in step by a test.
id, execute_at, task_type, payload, status, attempts, max_attempts, error_message, created_at, updated_at,
completed_at, priority, idempotency_key, timeout_ms, expires_at, result, progress, retry_at, started_at,
cancel_requested_at, fence, owner, request_digest;

-- name: completed
-- A job that ended well and returned nothing.
t.id, t.execute_at, t.task_type, t.payload, 'completed', t.attempts, t.max_attempts, NULL, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest;

-- name: completed_with_result
-- A job that ended well and returned something.
t.id, t.execute_at, t.task_type, t.payload, 'completed', t.attempts, t.max_attempts, NULL, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, o.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest;

-- name: failed
-- A job whose worker was lost on its last attempt; $2 says so.
t.id, t.execute_at, t.task_type, t.payload, 'failed', t.attempts, t.max_attempts, $2, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest;

-- name: failed_with_error
-- A job whose last attempt failed.
t.id, t.execute_at, t.task_type, t.payload, 'failed', t.attempts, t.max_attempts, o.error, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest;

-- name: cancelled
-- A job that its user cancelled while it ran.
t.id, t.execute_at, t.task_type, t.payload, 'cancelled', t.attempts, t.max_attempts, t.error_message, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest;

-- name: cancelled_with_error
-- A job that its worker cancelled, and why.
t.id, t.execute_at, t.task_type, t.payload, 'cancelled', t.attempts, t.max_attempts, o.error, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, t.started_at,
t.cancel_requested_at, t.fence, NULL, t.request_digest;

-- name: cancelled_unstarted
-- A job that was claimed and then never started: the attempt does not count.
t.id, t.execute_at, t.task_type, t.payload, 'cancelled', t.attempts - 1, t.max_attempts, o.error, t.created_at, now(),
now(), t.priority, t.idempotency_key, t.timeout_ms, t.expires_at, t.result, t.progress, t.retry_at, NULL,
t.cancel_requested_at, t.fence, NULL, t.request_digest;
