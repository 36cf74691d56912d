-- name: shown
-- The columns of a batch b and of its last execution, for views. Part of statements.
b.id, b.name, b.kind, b.type, b.status, b.version, b.next_slot_at, b.set_by, b.created_at, b.updated_at, b.date_time_execution, b.time_zone,
       b.restartable, b.restartable_unit, b.restartable_unit_type, b.cron, b.overlap, b.misfire, b.product_codes, b.served_by,
       last.id AS last_execution_id, last.status AS last_status, last.slot_at AS last_slot_at,
       (SELECT count(*) FROM tickwright.executions o WHERE o.batch_id = b.id AND o.status IN ('NEW', 'IN_PROGRESS')) AS open_executions

-- name: list_batches
-- A page of batches of the kind $1 behind the name $2 whose names lie between $3 and $4; $5 is a type, $6 a status. It reads $8 of them at
-- most: last_name is where it stopped, if it did. Index: batches_name_key, executions_batch_id_slot_at_key, executions_open.
SELECT found.*, searched.last_name
  FROM (SELECT (SELECT name FROM tickwright.batches WHERE name > $2 AND name >= $3 AND name < $4 ORDER BY name OFFSET $8 - 1 LIMIT 1) AS last_name) AS searched
  LEFT JOIN LATERAL (
    SELECT {shown}
      FROM (SELECT * FROM tickwright.batches WHERE name > $2 AND name >= $3 AND name < $4 ORDER BY name LIMIT $8) AS b
      LEFT JOIN LATERAL (SELECT e.id, e.status, e.slot_at FROM tickwright.executions e WHERE e.batch_id = b.id ORDER BY e.slot_at DESC LIMIT 1) AS last ON true
     WHERE b.kind = $1 AND ($5::text IS NULL OR b.type = $5) AND ($6::text IS NULL OR b.status = $6)
     ORDER BY b.name LIMIT $7) AS found ON true
 ORDER BY found.name;

-- name: get_batch
-- One batch as it is, the definition of its version, and the clock. Index: batches_name_key, batch_versions_pkey, executions_batch_id_slot_at_key.
SELECT {shown}, coalesce(v.terms, '{}')::text AS terms, clock_timestamp() AS now
  FROM tickwright.batches b
  LEFT JOIN tickwright.batch_versions v ON v.batch_id = b.id AND v.version = b.version
  LEFT JOIN LATERAL (SELECT e.id, e.status, e.slot_at FROM tickwright.executions e WHERE e.batch_id = b.id ORDER BY e.slot_at DESC LIMIT 1) AS last ON true
 WHERE b.kind = $1 AND b.name = $2;

-- name: lock_batch
-- Serialize the changes of one batch: this row first, then its executions, as the producer does. Index: batches_name_key.
SELECT id FROM tickwright.batches WHERE kind = $1 AND name = $2 FOR NO KEY UPDATE;

-- name: lock_batch_of
-- The same for the batch of an execution. Index: executions_pkey, batches_pkey.
SELECT b.id, b.name, b.kind, b.type, b.status FROM tickwright.batches b
 WHERE b.id = (SELECT e.batch_id FROM tickwright.executions e WHERE e.id = $1) FOR NO KEY UPDATE;

-- name: create_batch
-- A new batch, unless the name is taken by any kind of batch. Index: batches_name_key.
INSERT INTO tickwright.batches
  (kind, name, set_by, type, date_time_execution, time_zone, restartable, restartable_unit, restartable_unit_type, cron, overlap, misfire, misfire_max,
   misfire_grace, product_codes, definition)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::text[], $16::jsonb)
ON CONFLICT (name) DO NOTHING RETURNING id;

-- name: edit_batch
-- The next version of a batch; $3 to $16 as in create_batch, $17 its status then, $18 its next occurrence. After lock_batch. Index: batches_name_key.
UPDATE tickwright.batches
   SET version = version + 1, set_by = $3, type = $4, date_time_execution = $5, time_zone = $6, restartable = $7, restartable_unit = $8,
       restartable_unit_type = $9, cron = $10, overlap = $11, misfire = $12, misfire_max = $13, misfire_grace = $14, product_codes = $15::text[],
       definition = $16::jsonb, status = $17, next_slot_at = $18::timestamptz, updated_at = clock_timestamp()
 WHERE kind = $1 AND name = $2 RETURNING id;

-- name: take_over
-- Change who set it; its definition is the same. After lock_batch. Index: batches_pkey.
UPDATE tickwright.batches SET set_by = $2, updated_at = clock_timestamp() WHERE id = $1;

-- name: put_version
-- The definition of the version that a batch has now. After create_batch or edit_batch. Index: batches_pkey, batch_versions_pkey.
INSERT INTO tickwright.batch_versions (batch_id, version, terms, made_by) SELECT id, version, $2::jsonb, $3 FROM tickwright.batches WHERE id = $1;

-- name: set_status
-- Its status and its next occurrence. After lock_batch. Index: batches_pkey.
UPDATE tickwright.batches SET status = $2, next_slot_at = $3::timestamptz, updated_at = clock_timestamp() WHERE id = $1;

-- name: list_versions
-- A page of the versions of a batch before the one of number $2, newest first, without their definitions. Index: batch_versions_pkey.
SELECT version, made_by, made_at FROM tickwright.batch_versions WHERE batch_id = $1 AND version < $2 ORDER BY version DESC LIMIT $3;

-- name: get_version
-- One version of a batch. Index: batches_name_key, batch_versions_pkey.
SELECT v.version, v.made_by, v.made_at, v.terms::text AS terms
  FROM tickwright.batches b JOIN tickwright.batch_versions v ON v.batch_id = b.id WHERE b.kind = $1 AND b.name = $2 AND v.version = $3;

-- name: near_names
-- Names of batches of a kind, to suggest one near to a name that does not exist. Index: batches_name_key.
SELECT name FROM tickwright.batches WHERE kind = $1 ORDER BY name LIMIT 1000;

-- name: history
-- Why a batch may not be deleted: executions that are open or still release, and how many actions are kept. After lock_batch.
-- Index: executions_batch_id_slot_at_key.
SELECT count(*) FILTER (WHERE status IN ('NEW', 'IN_PROGRESS')) AS open,
       count(*) FILTER (WHERE status = 'FINISHED' AND chunks_released < chunks) AS releasing, coalesce(sum(actions), 0)::bigint AS actions
  FROM tickwright.executions WHERE batch_id = $1;

-- name: delete_actions
-- The actions of its executions. After lock_batch. Index: executions_batch_id_slot_at_key, execution_actions_pkey.
DELETE FROM tickwright.execution_actions a USING tickwright.executions e WHERE e.batch_id = $1 AND a.execution_id = e.id;

-- name: delete_batch
-- Delete a batch, its versions, executions and chunks. After lock_batch. Index: batches_pkey, batch_versions_pkey, executions_batch_id_slot_at_key,
-- execution_chunks_pkey.
DELETE FROM tickwright.batches WHERE id = $1;

-- name: encrypted_types
-- Which of these task types are encrypted. No table of its own: a function of jobs reads their types.
SELECT ARRAY(SELECT given.name FROM unnest($1::text[]) AS given (name) WHERE given.name = ANY (tickwright.encrypted_types()));

-- name: now
-- The now of an expression in a dry run. No table.
SELECT clock_timestamp();
