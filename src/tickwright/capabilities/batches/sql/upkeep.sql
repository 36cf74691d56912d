-- name: give_up
-- Stop failed executions that were not retried for $1, $2 of them: their rows are deleted next. Index: executions_ended.
UPDATE tickwright.executions SET status = 'STOPPED', ended_why = 'not retried before its rows were cleared away'
 WHERE id IN (SELECT id FROM tickwright.executions
               WHERE finished_at < clock_timestamp() - $1::interval AND status = 'EXCEPTION_OCCURRED'
               ORDER BY finished_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED);

-- name: old
-- Executions that ended $1 ago and release nothing any more, $2 of them. Index: executions_ended.
SELECT id FROM tickwright.executions
 WHERE finished_at < clock_timestamp() - $1::interval AND status <> 'EXCEPTION_OCCURRED' AND (status <> 'FINISHED' OR chunks_released >= chunks)
 ORDER BY finished_at LIMIT $2;

-- name: delete_actions
-- $2 actions of an old execution. Index: execution_actions_pkey.
DELETE FROM tickwright.execution_actions
 WHERE execution_id = $1 AND client_id = ANY (ARRAY(SELECT client_id FROM tickwright.execution_actions WHERE execution_id = $1 LIMIT $2));

-- name: delete_chunks
-- $2 chunks of an old execution. Index: execution_chunks_pkey.
DELETE FROM tickwright.execution_chunks
 WHERE execution_id = $1 AND number = ANY (ARRAY(SELECT number FROM tickwright.execution_chunks WHERE execution_id = $1 LIMIT $2));

-- name: delete_execution
-- One that has neither any more. Index: executions_pkey.
DELETE FROM tickwright.executions WHERE id = $1;

-- name: delete_skips
-- What was skipped $1 ago, up to ten notes of each batch and $2 in all. Index: batches_pkey, execution_skips_pkey.
DELETE FROM tickwright.execution_skips s
 USING (SELECT k.batch_id, k.slot_at FROM tickwright.batches b
         CROSS JOIN LATERAL (SELECT batch_id, slot_at FROM tickwright.execution_skips
                              WHERE batch_id = b.id AND slot_at < clock_timestamp() - $1::interval ORDER BY slot_at LIMIT 10) AS k
         LIMIT $2) AS old
 WHERE s.batch_id = old.batch_id AND s.slot_at = old.slot_at AND s.until_at < clock_timestamp() - $1::interval;
