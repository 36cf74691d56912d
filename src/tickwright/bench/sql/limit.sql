WITH c AS (UPDATE lean SET locked_at = now(), attempts = attempts + 1
  WHERE id = ANY(ARRAY(SELECT id FROM lean WHERE execute_at <= now() AND locked_at IS NULL
               ORDER BY execute_at FOR UPDATE SKIP LOCKED LIMIT 1000))
  RETURNING id, task_type, payload)
SELECT coalesce(array_agg(id), '{}') AS ids, count(payload) AS k FROM c \gset
DELETE FROM lean WHERE id = ANY(CAST(:ids AS bigint[]));
