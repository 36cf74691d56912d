-- name: encrypted_types
-- The names of encrypted types. Index: task_types_encrypted.
SELECT name FROM tickwright.task_types WHERE encrypted;

-- name: count_jobs
-- Jobs of the types $1 by where they are and by the keys of their payloads, results and progress; NULL is plain text. It reads every job once.
SELECT CASE t.tableoid WHEN 'tickwright.scheduled_tasks'::regclass THEN 'live' WHEN 'tickwright.scheduled_tasks_dead'::regclass THEN 'dead_letters'
                       ELSE 'finished' END AS place,
       used.key, count(*) AS jobs
  FROM tickwright.scheduled_tasks t
 CROSS JOIN LATERAL (
   SELECT DISTINCT v.value -> '$encrypted' ->> 'key' AS key FROM (VALUES (t.payload), (t.result), (t.progress)) AS v (value) WHERE v.value IS NOT NULL
 ) AS used
 WHERE t.task_type = ANY ($1::text[])
 GROUP BY 1, 2;

-- name: count_schedules
-- Schedules of the types $1 by the keys of their payloads. Small: a row per schedule.
SELECT payload -> '$encrypted' ->> 'key' AS key, count(*) AS jobs FROM tickwright.schedules WHERE task_type = ANY ($1::text[]) GROUP BY 1;

-- name: live_window
-- The last id of the next $2 live jobs behind $1. Index: scheduled_tasks_pkey.
SELECT max(w.id) FROM (SELECT t.id FROM ONLY tickwright.scheduled_tasks t WHERE t.id > $1 ORDER BY t.id LIMIT $2) AS w;

-- name: live_stale
-- Pending jobs of the types $3 in a window ($1, $2] whose payload or progress does not have the key $4, with their versions. A job that a worker holds is not
-- one of them. Index: scheduled_tasks_pkey.
SELECT t.id, t.task_type AS subject, t.payload::text AS payload, t.progress::text AS progress, t.fence + coalesce(t.edits, 0) + 1 AS version
  FROM ONLY tickwright.scheduled_tasks t
 WHERE t.id > $1 AND t.id <= $2 AND t.task_type = ANY ($3::text[]) AND t.owner IS NULL AND t.status = 'pending'
   AND (t.payload -> '$encrypted' ->> 'key' IS DISTINCT FROM $4
        OR t.progress IS NOT NULL AND t.progress -> '$encrypted' ->> 'key' IS DISTINCT FROM $4)
 ORDER BY t.id;

-- name: live_seal
-- Replace payloads and progress of pending jobs that have the versions $2 still, and that no other session has locked. Index: scheduled_tasks_pkey.
UPDATE ONLY tickwright.scheduled_tasks t SET payload = CAST(u.payload AS jsonb), progress = CAST(u.progress AS jsonb)
  FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS u (id, version, payload, progress)
 WHERE t.id = u.id AND t.owner IS NULL AND t.status = 'pending' AND t.fence + coalesce(t.edits, 0) + 1 = u.version
   AND t.id = ANY (ARRAY (SELECT f.id FROM ONLY tickwright.scheduled_tasks f WHERE f.id = ANY ($1::bigint[]) FOR NO KEY UPDATE SKIP LOCKED))
RETURNING t.id;

-- name: dead_window
-- The last id of the next $2 dead letters behind $1. Index: scheduled_tasks_dead_pkey.
SELECT max(w.id) FROM (SELECT t.id FROM tickwright.scheduled_tasks_dead t WHERE t.id > $1 ORDER BY t.id LIMIT $2) AS w;

-- name: dead_stale
-- The same of dead letters. Index: scheduled_tasks_dead_pkey.
SELECT t.id, t.task_type AS subject, t.payload::text AS payload, t.progress::text AS progress, t.fence + coalesce(t.edits, 0) + 1 AS version
  FROM tickwright.scheduled_tasks_dead t
 WHERE t.id > $1 AND t.id <= $2 AND t.task_type = ANY ($3::text[])
   AND (t.payload -> '$encrypted' ->> 'key' IS DISTINCT FROM $4
        OR t.progress IS NOT NULL AND t.progress -> '$encrypted' ->> 'key' IS DISTINCT FROM $4)
 ORDER BY t.id;

-- name: dead_seal
-- The same of dead letters, each deleted and inserted again, because a finished job refuses every UPDATE. Index: scheduled_tasks_dead_pkey.
WITH former AS (
  DELETE FROM tickwright.scheduled_tasks_dead t USING unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS u (id, version, payload, progress)
   WHERE t.id = u.id AND t.fence + coalesce(t.edits, 0) + 1 = u.version
     AND t.id = ANY (ARRAY (SELECT f.id FROM tickwright.scheduled_tasks_dead f WHERE f.id = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED))
  RETURNING t AS job, u.payload, u.progress
)
INSERT INTO tickwright.scheduled_tasks_dead
SELECT sealed.* FROM former CROSS JOIN LATERAL jsonb_populate_record(
         former.job, jsonb_build_object('payload', CAST(former.payload AS jsonb), 'progress', CAST(former.progress AS jsonb))) AS sealed
RETURNING id;

-- name: schedules_stale
-- Schedules of the types $1 whose payload does not have the key $2, locked. Small: a row per schedule.
SELECT name, task_type, payload::text AS payload FROM tickwright.schedules
 WHERE task_type = ANY ($1::text[]) AND payload -> '$encrypted' ->> 'key' IS DISTINCT FROM $2 FOR UPDATE;

-- name: schedules_seal
-- Replace the payload of a locked schedule. Index: schedules_pkey.
UPDATE tickwright.schedules SET payload = CAST($2::text AS jsonb) WHERE name = $1;

-- name: count_messages
-- Encrypted messages of the outbox, and its dead ones, by the keys of their payloads. It reads every message once.
SELECT m.payload -> '$encrypted' ->> 'key' AS key, count(*) AS jobs
  FROM (SELECT payload, headers FROM tickwright.outbox UNION ALL SELECT payload, headers FROM tickwright.outbox_dead) AS m
 WHERE m.headers ? 'tickwright-deliver' GROUP BY 1;

-- name: outbox_window
-- The last id of the next $2 messages behind $1. Index: outbox_pkey.
SELECT max(w.id) FROM (SELECT id FROM tickwright.outbox WHERE id > $1 ORDER BY id LIMIT $2) AS w;

-- name: outbox_stale
-- Encrypted messages in a window ($1, $2] whose payload does not have the key $4; $3 are task types, which they do not have. The version is that of the row.
-- Index: outbox_pkey.
SELECT id, destination AS subject, payload::text AS payload, NULL AS progress, hashtextextended(payload::text, 0) AS version FROM tickwright.outbox
 WHERE id > $1 AND id <= $2 AND $3::text[] IS NOT NULL AND headers ? 'tickwright-deliver' AND payload -> '$encrypted' ->> 'key' IS DISTINCT FROM $4;

-- name: outbox_seal
-- Replace payloads of messages that have the same payload still, and that no other session has locked. Index: outbox_pkey.
UPDATE tickwright.outbox o SET payload = CAST(u.payload AS jsonb)
  FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS u (id, version, payload, progress)
 WHERE o.id = u.id AND hashtextextended(o.payload::text, 0) = u.version
   AND o.id = ANY (ARRAY (SELECT f.id FROM tickwright.outbox f WHERE f.id = ANY ($1::bigint[]) FOR NO KEY UPDATE SKIP LOCKED))
RETURNING o.id;

-- name: outbox_dead_window
-- The last id of the next $2 dead messages behind $1. Index: outbox_dead_pkey.
SELECT max(w.id) FROM (SELECT id FROM tickwright.outbox_dead WHERE id > $1 ORDER BY id LIMIT $2) AS w;

-- name: outbox_dead_stale
-- The same of dead messages. Index: outbox_dead_pkey.
SELECT id, destination AS subject, payload::text AS payload, NULL AS progress, hashtextextended(payload::text, 0) AS version FROM tickwright.outbox_dead
 WHERE id > $1 AND id <= $2 AND $3::text[] IS NOT NULL AND headers ? 'tickwright-deliver' AND payload -> '$encrypted' ->> 'key' IS DISTINCT FROM $4;

-- name: outbox_dead_seal
-- The same of dead messages. Index: outbox_dead_pkey.
UPDATE tickwright.outbox_dead o SET payload = CAST(u.payload AS jsonb)
  FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) AS u (id, version, payload, progress)
 WHERE o.id = u.id AND hashtextextended(o.payload::text, 0) = u.version
   AND o.id = ANY (ARRAY (SELECT f.id FROM tickwright.outbox_dead f WHERE f.id = ANY ($1::bigint[]) FOR NO KEY UPDATE SKIP LOCKED))
RETURNING o.id;
