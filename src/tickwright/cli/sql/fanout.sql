-- name: entities
-- Whether there are entities, how many are polled, up to 50,000, and for how many modules that somebody has set up. The lists are
-- walked from one to the next that differs, a thousand of them. Index: entities_polled, entities_pkey, modules_pkey.
WITH RECURSIVE lists AS (
  (SELECT polling_enabled_modules AS list, 1 AS n FROM tickwright.entities WHERE is_polling_enabled
    ORDER BY polling_enabled_modules LIMIT 1)
  UNION ALL
  SELECT next.list, l.n + 1
    FROM lists l CROSS JOIN LATERAL (
      SELECT e.polling_enabled_modules AS list FROM tickwright.entities e
       WHERE e.is_polling_enabled AND e.polling_enabled_modules > l.list ORDER BY e.polling_enabled_modules LIMIT 1) AS next
   WHERE l.n < 1000
)
SELECT EXISTS (SELECT FROM tickwright.entities) AS known,
       (SELECT count(*) FROM (SELECT FROM tickwright.entities WHERE is_polling_enabled LIMIT 50000) AS some_of_them) AS entities,
       (SELECT count(DISTINCT m.name) FROM lists l CROSS JOIN LATERAL string_to_table(l.list, ',') AS part
          JOIN tickwright.modules m ON m.name = upper(btrim(part, E' \t\r\n\f\v'))) AS modules;

-- name: lately
-- What the consumers that live say of themselves: how many there are, what waits in the queue, what became of tasks in
-- their last minute. Small: a row per session.
SELECT count(*) AS consumers,
       max(CASE WHEN jsonb_typeof(facts -> 'fanout_queued') = 'number' THEN (facts -> 'fanout_queued')::bigint END) AS queued,
       max(CASE WHEN jsonb_typeof(facts -> 'fanout_dead_letters') = 'number' THEN (facts -> 'fanout_dead_letters')::bigint END)
         AS dead_letters,
       coalesce(sum((facts -> 'fanout_last_minute' -> 'succeeded')::bigint), 0)::bigint AS succeeded,
       coalesce(sum((facts -> 'fanout_last_minute' -> 'failed')::bigint), 0)::bigint AS failed,
       coalesce(sum((facts -> 'fanout_last_minute' -> 'superseded')::bigint), 0)::bigint AS superseded,
       coalesce(sum((facts -> 'fanout_last_minute' -> 'expired')::bigint), 0)::bigint AS expired
  FROM tickwright.workers WHERE lost_at IS NULL AND lease_until > clock_timestamp() AND 'fanout-consumer' = ANY (roles);
