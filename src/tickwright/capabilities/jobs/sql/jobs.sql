-- name: shown
-- The columns of a job that callers see.
t.id, t.task_type, CASE WHEN t.tableoid = 'tickwright.scheduled_tasks_waiting'::regclass THEN 'waiting' ELSE t.status END AS status, t.execute_at, tickwright.shown_at(coalesce(t.due_at, t.retry_at, t.execute_at)) AS due_at, t.attempts, t.max_attempts,
t.priority, t.idempotency_key, t.timeout_ms, tickwright.shown_at(t.expires_at) AS expires_at, t.error_message, t.created_at, t.updated_at, t.started_at,
t.completed_at, tickwright.shown_at(CASE WHEN t.due_at IS NULL THEN t.retry_at ELSE nullif(t.due_at, t.execute_at) END) AS retry_at,
t.cancel_requested_at, t.fence, t.owner, coalesce(t.tags, '{}') AS tags, t.group_key AS "group",
t.fence + coalesce(t.edits, 0) + 1 AS version,
coalesce(t.workflow_id, (SELECT n.workflow_id FROM tickwright.workflow_nodes n WHERE n.id = t.id)) AS workflow_id;

-- name: unique_now
-- The rule of a unique job, and which job has its arguments now; NULL for others.
CASE WHEN t.uniqueness IS NOT NULL THEN (
  SELECT t.uniqueness || jsonb_build_object('holder_id', u.job_id, 'held_from', u.held_from, 'until', u.until, 'kept', u.kept)
    FROM (SELECT) AS one LEFT JOIN tickwright.job_uniques u ON u.digest = decode(t.uniqueness ->> 'digest', 'hex'))::text END AS uniqueness;

-- name: get
-- One job, live or finished. Indexes: the primary key of each table of the family, one probe each; job_uniques_pkey.
SELECT {shown}, t.payload, t.metadata, t.result, t.progress, t.attempt_errors, t.traceparent, t.steps, {unique_now}
  FROM tickwright.scheduled_tasks t WHERE t.id = $1;

-- name: get_many
-- The jobs of a page, newest first. Indexes: the primary key of each table of the family.
SELECT {shown} FROM tickwright.scheduled_tasks t WHERE t.id = ANY ($1::bigint[]) ORDER BY t.id DESC;

-- name: lock
-- One live job, locked against its claim and its end. Index: scheduled_tasks_pkey.
SELECT t.status, t.execute_at, tickwright.shown_at(CASE WHEN t.due_at IS NULL THEN t.retry_at ELSE nullif(t.due_at, t.execute_at) END) AS retry_at, t.attempts, t.cancel_requested_at, t.priority, t.tags,
       t.fence + coalesce(t.edits, 0) + 1 AS version, t.task_type,
       EXISTS (SELECT FROM tickwright.task_types y WHERE y.name = t.task_type AND y.encrypted) AS encrypted
  FROM ONLY tickwright.scheduled_tasks t WHERE t.id = $1 FOR UPDATE;

-- name: cancel_waiting
-- Cancel a job that waits for others. Index: scheduled_tasks_waiting_pkey.
UPDATE ONLY tickwright.scheduled_tasks_waiting t SET status = 'cancelled' WHERE t.id = $1 RETURNING t.id;

-- name: finished_status
-- The status of a job that is no longer live. Indexes: the primary key of each table of the family.
SELECT t.status FROM tickwright.scheduled_tasks t WHERE t.id = $1;

-- name: cancel
-- Cancel: a pending job ends at once, a held one stays with its worker, which is asked to stop it (scheduled_tasks_held). Index:
-- scheduled_tasks_pkey.
UPDATE ONLY tickwright.scheduled_tasks t SET status = 'cancelled' WHERE t.id = ANY ($1::bigint[])
RETURNING t.id, t.status;

-- name: reschedule
-- Move a pending job and end its back-off. Index: scheduled_tasks_pkey.
UPDATE ONLY tickwright.scheduled_tasks t
   SET execute_at = coalesce($2::timestamptz, clock_timestamp() + $3::interval), retry_at = NULL,
       updated_at = clock_timestamp()
 WHERE t.id = $1 AND t.status = 'pending' RETURNING t.execute_at;

-- name: edit
-- Change those of payload, priority, tags and metadata that $2 to $5 say, and remove its steps if $10 says so; scheduled_tasks_edits counts it. Index:
-- scheduled_tasks_pkey.
UPDATE ONLY tickwright.scheduled_tasks t
   SET payload = CASE WHEN $2::boolean THEN CAST($6::text AS jsonb) ELSE t.payload END,
       priority = CASE WHEN $3::boolean THEN $7::smallint ELSE t.priority END,
       tags = CASE WHEN $4::boolean THEN $8::text[] ELSE t.tags END,
       metadata = CASE WHEN $5::boolean THEN CAST($9::text AS jsonb) ELSE t.metadata END,
       steps = CASE WHEN NOT $10::boolean THEN t.steps END
 WHERE t.id = $1 AND t.status = 'pending' RETURNING t.fence + coalesce(t.edits, 0) + 1 AS version;

-- name: pick_dead
-- Dead letters by id or of a type, behind the id $4, the oldest first, locked. fits: the table of live jobs accepts them; its rules may be
-- newer than a letter. Index: scheduled_tasks_dead_pkey.
SELECT t.id, t.fence, t.edits, t.attempts, t.idempotency_key, t.request_digest, t.uniqueness,
       tickwright.new_job_fits('pending', NULL, 0, 0, t.task_type, t.execute_at, t.max_attempts, t.priority, t.timeout_ms, t.payload, t.traceparent, NULL)
         AND tickwright.payload_fits_type(t.task_type, t.payload) AS fits
  FROM tickwright.scheduled_tasks_dead t
 WHERE ($1::bigint[] IS NULL OR t.id = ANY ($1)) AND ($2::text IS NULL OR t.task_type = $2) AND t.id > $4
 ORDER BY t.id LIMIT $3 FOR UPDATE SKIP LOCKED;

-- name: hold_keys
-- Hold the keys of dead letters that are requeued ($1 ids, $2 keys, $3 digests) again; their age starts again. Returns the ids whose key no
-- other job holds; of two with one key, one. In the transaction of ``revive``, before it. Indexes: job_keys_pkey, scheduled_tasks_key.
INSERT INTO tickwright.job_keys AS held (key, job_id, digest, created_at)
SELECT DISTINCT ON (u.key) u.key, u.id, u.digest, clock_timestamp()
  FROM unnest($1::bigint[], $2::text[], $3::bytea[]) AS u (id, key, digest) LEFT JOIN tickwright.job_keys k ON k.key = u.key
 WHERE NOT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t WHERE t.idempotency_key = u.key)
 ORDER BY u.key, (k.job_id = u.id) DESC NULLS LAST, u.id
    ON CONFLICT (key) DO UPDATE SET created_at = excluded.created_at WHERE held.job_id = excluded.job_id
RETURNING job_id;

-- name: hold_uniques
-- Let unique dead letters that are requeued ($1 ids, $2 rules) hold their arguments again; returns the ids of those whose arguments no other job holds; of two equal
-- ones, one. In the order of their digests: no deadlock. In the transaction of ``revive``, before it. Index: job_uniques_pkey.
SELECT o.id
  FROM (SELECT DISTINCT ON (u.rule ->> 'digest' COLLATE "C") u.id, u.rule FROM unnest($1::bigint[], $2::jsonb[]) AS u (id, rule)
         ORDER BY u.rule ->> 'digest' COLLATE "C", u.id OFFSET 0) AS o
 WHERE tickwright.hold_unique(o.id, o.rule);

-- name: revive
-- Make dead letters pending again under their own ids, due now, with all their attempts; from the start ($2) without their steps. Index:
-- scheduled_tasks_dead_pkey.
WITH back AS (
  DELETE FROM tickwright.scheduled_tasks_dead t WHERE t.id = ANY ($1::bigint[]) RETURNING t.*
)
INSERT INTO tickwright.scheduled_tasks
       (id, execute_at, task_type, payload, max_attempts, error_message, created_at, priority, timeout_ms, expires_at,
        progress, retry_at, attempt_errors, traceparent, tags, metadata, group_key, uniqueness, steps, workflow_id)
OVERRIDING SYSTEM VALUE
SELECT id, execute_at, task_type, payload, max_attempts, error_message, created_at, priority, timeout_ms, expires_at,
       progress, clock_timestamp(), attempt_errors, traceparent, tags, metadata, group_key, uniqueness,
       CASE WHEN NOT $2::boolean THEN steps END, (SELECT n.workflow_id FROM tickwright.workflow_nodes n WHERE n.id = back.id)
  FROM back;

-- name: reopen_nodes
-- The last part of ``revive``: their workflows run again, and what waits for them waits again. Index: workflow_nodes_pkey.
SELECT tickwright.reopen_nodes($1::bigint[]);

-- name: revive_fences
-- The second half of ``revive``, in its transaction: fences and versions keep rising, keys stay with their jobs. Index: scheduled_tasks_pkey.
UPDATE ONLY tickwright.scheduled_tasks t
   SET fence = u.fence, edits = u.edits, idempotency_key = u.idempotency_key, request_digest = u.request_digest
  FROM unnest($1::bigint[], $2::bigint[], $3::integer[], $4::text[], $5::bytea[]) AS u (id, fence, edits, idempotency_key, request_digest)
 WHERE t.id = u.id;

-- name: key_holder
-- The job of an idempotency key, live or finished. Indexes: scheduled_tasks_key, job_keys_pkey.
SELECT id FROM ONLY tickwright.scheduled_tasks WHERE idempotency_key = $1
UNION ALL
SELECT job_id FROM tickwright.job_keys WHERE key = $1
LIMIT 1;

-- name: explain
-- The facts that decide whether a job runs now. due: the jobs of its own claim range and, where its type has a limit, of the type's
-- other ranges, which share it; the first 10,000 that are due of each, 100,000 in all. A worker is full by its last heartbeat, also where
-- this type has three quarters of the slots or threads that the others leave (allot in model.py). One that reports no slots is not full.
-- A worker with slots for queues reports which of them have no free one.
-- Indexes: primary keys; scheduled_tasks_due, one probe and one scan per claim range; scheduled_tasks_grouped, scheduled_tasks_in_order.
WITH RECURSIVE job AS MATERIALIZED (
  SELECT {shown}, t.steps, {unique_now} FROM tickwright.scheduled_tasks t WHERE t.id = $1
), walked AS (
  SELECT y.name AS task_type, 32767::smallint AS priority
    FROM job JOIN tickwright.task_types y ON y.name = job.task_type AND y.concurrency IS NOT NULL
  UNION ALL
  SELECT w.task_type, (SELECT max(t.priority) FROM ONLY tickwright.scheduled_tasks t WHERE t.task_type = w.task_type AND t.priority < w.priority)
    FROM walked w WHERE w.priority IS NOT NULL
), claim_range AS MATERIALIZED (
  SELECT task_type, priority, true AS own FROM job
  UNION ALL
  SELECT w.task_type, w.priority, false FROM walked w JOIN job ON w.priority <> job.priority
), due AS MATERIALIZED (
  SELECT h.status, h.owner, h.due_at, h.id, claim_range.own
    FROM claim_range CROSS JOIN LATERAL (
      SELECT t.status, t.owner, coalesce(t.retry_at, t.execute_at) AS due_at, t.id FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority
         AND coalesce(t.retry_at, t.execute_at) <= now() + interval '10 seconds'
       ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT 10000) AS h
   LIMIT 100000
), able AS MATERIALIZED (
  SELECT w.id, load.running, load.slots, load.threads_busy, load.threads,
         coalesce(w.facts -> 'scope' -> 'slots' IS NOT NULL AND w.facts -> 'queues_full' ? CASE WHEN w.facts -> 'scope' -> 'slots' ? y.queue THEN y.queue ELSE '*' END, false)
           AS no_queue_slot,
         w.facts -> 'scope' -> 'slots' IS NULL AND coalesce(least(load.running, greatest((SELECT count(*) FROM due d WHERE d.status = 'processing' AND d.owner = w.id), load.of_type)) >= 3 * (load.slots - load.running), false)
           AS no_slot,
         coalesce(load.threads_of_type >= 3 * (load.threads - load.threads_busy), false) AS no_thread
    FROM job JOIN tickwright.task_types y ON y.name = job.task_type CROSS JOIN tickwright.workers w
    CROSS JOIN LATERAL (SELECT CASE WHEN y.target LIKE 'python:%' THEN w.facts -> 'handlers' WHEN y.target NOT LIKE 'remote:%'
                                    THEN w.facts -> 'brokers' END AS has) AS reported
    LEFT JOIN LATERAL (
      SELECT (said.jobs ->> 'running')::numeric AS running, (said.jobs ->> 'slots')::numeric AS slots,
             (said.jobs ->> 'threads')::numeric AS threads, (said.jobs ->> 'threads_busy')::numeric AS threads_busy,
             (w.facts #>> ARRAY['counters', 'types', job.task_type, 'running'])::numeric AS of_type,
             (w.facts #>> ARRAY['counters', 'types', job.task_type, 'threads'])::numeric AS threads_of_type
        FROM jsonb_path_query_first(w.facts, '$.counters.jobs ? (@.running.type() == "number" && @.slots.type() == "number")') AS said (jobs)) AS load ON true
   WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
     AND CASE WHEN jsonb_typeof(reported.has) = 'array'
              THEN reported.has ? CASE WHEN y.target LIKE 'python:%' THEN substr(y.target, 8) ELSE split_part(y.target, ':', 1) END
              ELSE true END
     AND tickwright.serves(w.roles, w.facts, y.target, y.name, y.queue, y.needs)
)
SELECT job.*, clock_timestamp() AS now, sealed.key AS payload_key,
       (SELECT count(*) FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND w.facts -> 'payload_keys' ? sealed.key)
         AS key_holders,
       y.name IS NOT NULL AS type_known, y.paused_at, y.gone_at, y.queue, y.needs, q.paused_at AS queue_paused_at, y.concurrency, y.rate_per_s, y.target,
       coalesce(y.encrypted, false) AS encrypted, y.deliver, r.next_free_at,
       y.group_limit, y.group_rate_per_s, y.group_order, g.stopped_by AS group_stopped_by, g.free_at AS group_free_at,
       (SELECT count(*) FROM unnest(g.held) AS h (id) JOIN ONLY tickwright.scheduled_tasks t ON t.id = h.id AND t.status = 'processing'
         WHERE t.group_key = g.group_key) AS group_running,
       (SELECT min(t.id) FROM ONLY tickwright.scheduled_tasks t
         WHERE y.group_order IS NOT NULL AND t.task_type = job.task_type AND t.group_key = job."group" AND t.due_at IS NOT NULL AND t.id < job.id) AS group_first,
       (SELECT count(*) FROM (SELECT FROM ONLY tickwright.scheduled_tasks t
                               WHERE t.task_type = job.task_type AND t.group_key = job."group" AND t.due_at <= now() AND t.due_at < job.due_at ORDER BY t.due_at LIMIT 10000) AS before) AS group_before,
       coalesce((SELECT sum(g.granted) FROM tickwright.type_grants g JOIN tickwright.workers w ON w.id = g.worker
                  WHERE g.task_type = job.task_type AND w.lost_at IS NULL), 0) AS granted,
       EXISTS (SELECT FROM tickwright.type_grants g JOIN able ON able.id = g.worker AND NOT (able.no_slot OR able.no_queue_slot OR able.no_thread)
                 LEFT JOIN (SELECT d.owner, count(*) AS held FROM due d WHERE d.status = 'processing' GROUP BY d.owner) AS has ON has.owner = g.worker
                WHERE g.task_type = job.task_type AND g.granted > coalesce(has.held, 0)) AS has_place,
       (SELECT count(*) FROM due d WHERE d.status = 'processing') AS running,
       (SELECT count(*) FROM due d
         WHERE d.own AND d.status = 'pending' AND d.due_at <= now() AND (d.due_at, d.id) < (job.due_at, job.id)) AS waiting_before,
       (SELECT count(*) FROM tickwright.workers w
         WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND CASE WHEN y.target LIKE 'remote:%' THEN 'remote' ELSE 'worker' END = ANY (w.roles)) AS workers,
       (SELECT count(*) FROM tickwright.workers w
         WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND tickwright.serves(w.roles, w.facts, y.target, y.name, y.queue, y.needs)) AS serving_workers,
       able.workers AS able_workers, able.full AS full_workers, able.running AS able_running, able.slots AS able_slots,
       able.without_queue_slot AS queue_full_workers, able.threadless AS threadless_workers, able.threads_busy AS able_threads_busy, able.threads AS able_threads,
       o.name AS worker_name, o.lease_until AS worker_lease_until, o.lost_at AS worker_lost_at
  FROM job
  LEFT JOIN tickwright.task_types y ON y.name = job.task_type
  LEFT JOIN tickwright.queues q ON q.name = y.queue
  LEFT JOIN LATERAL (SELECT t.payload -> '$encrypted' ->> 'key' AS key FROM tickwright.scheduled_tasks t WHERE t.id = job.id) AS sealed ON y.encrypted
  LEFT JOIN tickwright.type_rates r ON r.task_type = job.task_type
  LEFT JOIN tickwright.job_groups g ON g.task_type = job.task_type AND g.group_key = job."group"
  LEFT JOIN tickwright.workers o ON o.id = job.owner
 CROSS JOIN (SELECT count(*) AS workers, count(*) FILTER (WHERE no_slot OR no_queue_slot OR no_thread) AS full, count(*) FILTER (WHERE no_queue_slot) AS without_queue_slot, sum(running) AS running, sum(slots) AS slots,
                    count(*) FILTER (WHERE no_thread) AS threadless, sum(threads_busy) AS threads_busy, sum(threads) AS threads FROM able) AS able;

-- name: history_of_today
-- The history table of the database's day in UTC, created if missing, and the number of that day since 1970. No table.
SELECT tickwright.ensure_history(c.at) AS history, floor(date_part('epoch', c.at) / 86400)::integer AS day
  FROM clock_timestamp() AS c (at);
