-- name: given_columns
-- The columns that a job has only where its request says so: in statements for batches with such a job.
tags, metadata, group_key;

-- name: given_values
-- Their values, from the JSON of one job's details.
tickwright.tags_of(CAST(u.details AS jsonb)), CAST(u.details AS jsonb) -> 'metadata', CAST(u.details AS jsonb) ->> 'group';

-- name: insert_plain
-- Schedule jobs without keys; the ids are in the order of the arguments. JSON is passed as text, because a codec on the caller's connection
-- would encode it again.
INSERT INTO tickwright.scheduled_tasks
       (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, traceparent)
SELECT coalesce(u.execute_at, now() + coalesce(u.delay, interval '0')), u.task_type, CAST(u.payload AS jsonb), u.max_attempts,
       u.priority, u.timeout_ms, u.expires_at, u.traceparent
  FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::integer[], $5::smallint[], $6::integer[], $7::timestamptz[],
              $8::interval[], $9::text[])
    AS u (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, delay, traceparent)
RETURNING id;

-- name: insert_plain_detailed
-- The same for a batch with details: for each job JSON, or NULL.
INSERT INTO tickwright.scheduled_tasks
       (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, traceparent, {given_columns})
SELECT coalesce(u.execute_at, now() + coalesce(u.delay, interval '0')), u.task_type, CAST(u.payload AS jsonb), u.max_attempts,
       u.priority, u.timeout_ms, u.expires_at, u.traceparent, {given_values}
  FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::integer[], $5::smallint[], $6::integer[], $7::timestamptz[],
              $8::interval[], $9::text[], $10::text[])
    AS u (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, delay, traceparent, details)
RETURNING id;

-- name: insert_keyed
-- Schedule jobs with idempotency keys; returns those whose key was free. JSON is passed as text, as above. $12 bounds the wait for a key
-- that another transaction holds; NULL in a caller's transaction keeps its own bound. Indexes: scheduled_tasks_key, job_keys_pkey.
INSERT INTO tickwright.scheduled_tasks
       (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, traceparent, idempotency_key,
        request_digest)
SELECT coalesce(u.execute_at, now() + coalesce(u.delay, interval '0')), u.task_type, CAST(u.payload AS jsonb), u.max_attempts,
       u.priority, u.timeout_ms, u.expires_at, u.traceparent,
       u.idempotency_key, u.request_digest
  FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::integer[], $5::smallint[], $6::integer[], $7::timestamptz[],
              $8::interval[], $9::text[], $10::text[], $11::bytea[])
    AS u (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, delay, traceparent,
          idempotency_key, request_digest)
 CROSS JOIN (SELECT CASE WHEN $12::text IS NOT NULL THEN set_config('lock_timeout', $12, true) ELSE '' END AS lock_timeout) AS bound
 WHERE bound.lock_timeout IS NOT NULL
    ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING idempotency_key, id;

-- name: insert_keyed_detailed
-- The same for a batch with details: for each job JSON, or NULL.
INSERT INTO tickwright.scheduled_tasks
       (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, traceparent, idempotency_key,
        request_digest, {given_columns})
SELECT coalesce(u.execute_at, now() + coalesce(u.delay, interval '0')), u.task_type, CAST(u.payload AS jsonb), u.max_attempts,
       u.priority, u.timeout_ms, u.expires_at, u.traceparent,
       u.idempotency_key, u.request_digest, {given_values}
  FROM unnest($1::timestamptz[], $2::text[], $3::text[], $4::integer[], $5::smallint[], $6::integer[], $7::timestamptz[],
              $8::interval[], $9::text[], $10::text[], $11::bytea[], $12::text[])
    AS u (execute_at, task_type, payload, max_attempts, priority, timeout_ms, expires_at, delay, traceparent,
          idempotency_key, request_digest, details)
 CROSS JOIN (SELECT CASE WHEN $13::text IS NOT NULL THEN set_config('lock_timeout', $13::text, true) ELSE '' END AS lock_timeout) AS bound
 WHERE bound.lock_timeout IS NOT NULL
    ON CONFLICT (idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING idempotency_key, id;

-- name: insert_each
-- Insert jobs one by one in one transaction; returns for each, in order, its id, or why it was refused, or neither where its key is taken.
-- $13 bounds the wait as above.
SELECT job_id, code, message
  FROM tickwright.insert_each($13::text, $1::timestamptz[], $2::text[], $3::text[], $4::integer[], $5::smallint[], $6::integer[], $7::timestamptz[],
                              $8::interval[], $9::text[], $10::text[], $11::bytea[], $12::text[]);

-- name: insert_unique
-- Insert unique jobs in the order of their digests; returns for each, by its place, what happened, or nothing where its key is taken. $1: one by one, with the error
-- of each. $14 bounds a wait for another transaction; NULL in a caller's transaction. Indexes: job_uniques_pkey, scheduled_tasks_pkey, job_unique_ends_pkey.
SELECT place, job_id, outcome, replaced, status, code, message
  FROM tickwright.insert_unique($1::boolean, $14::text, $2::timestamptz[], $3::text[], $4::text[], $5::integer[], $6::smallint[], $7::integer[],
                                $8::timestamptz[], $9::interval[], $10::text[], $11::text[], $12::bytea[], $13::text[])
 ORDER BY place;

-- name: find_keys
-- The jobs that hold these keys, live or finished. Indexes: scheduled_tasks_key, job_keys_pkey.
SELECT idempotency_key AS key, id, request_digest AS digest
  FROM ONLY tickwright.scheduled_tasks WHERE idempotency_key = ANY ($1::text[])
UNION ALL
SELECT k.key, k.job_id, k.digest FROM tickwright.job_keys k WHERE k.key = ANY ($1::text[]);

-- name: now
-- The instant of this transaction, for rows that are inserted by COPY.
SELECT now();
