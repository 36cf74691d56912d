-- name: overview
-- How many entities are polled, up to $1, and for how many registered modules, over a thousand different lists. Then the living consumers:
-- their number, what waits in the queue, what became of tasks in the last minute. Index: entities_polled, modules_pkey; a row per session.
WITH RECURSIVE {lists}
SELECT (SELECT count(*) FROM (SELECT FROM tickwright.entities WHERE is_polling_enabled LIMIT $1) AS bounded) AS entities,
       (SELECT count(DISTINCT m.name) FROM searched l CROSS JOIN LATERAL string_to_table(l.list, ',') AS part
          JOIN tickwright.modules m ON m.name = upper(btrim(part, E' \t\r\n\f\v'))) AS modules,
       said.*
  FROM (SELECT count(*) AS consumers,
               max(CASE WHEN jsonb_typeof(facts -> 'fanout_queued') = 'number' THEN (facts -> 'fanout_queued')::bigint END) AS queued,
               max(CASE WHEN jsonb_typeof(facts -> 'fanout_dead_letters') = 'number' THEN (facts -> 'fanout_dead_letters')::bigint END)
                 AS dead_letters,
               coalesce(sum((facts -> 'fanout_last_minute' -> 'succeeded')::bigint), 0)::bigint AS succeeded,
               coalesce(sum((facts -> 'fanout_last_minute' -> 'failed')::bigint), 0)::bigint AS failed,
               coalesce(sum((facts -> 'fanout_last_minute' -> 'superseded')::bigint), 0)::bigint AS superseded,
               coalesce(sum((facts -> 'fanout_last_minute' -> 'expired')::bigint), 0)::bigint AS expired
          FROM tickwright.workers WHERE lost_at IS NULL AND lease_until > clock_timestamp() AND 'fanout-consumer' = ANY (roles)) AS said;

-- name: is_used
-- Whether fan-out polls any entity. Index: entities_polled.
SELECT EXISTS (SELECT FROM tickwright.entities WHERE is_polling_enabled);
