-- name: fanout_dead_letters
-- Dead letters of fan-out's queue, as live consumers have counted them: the largest count. A consumer that cannot count keeps its last
-- count, which must not end the alert. Small: a row per session.
SELECT 'fanout' AS subject, jsonb_build_object('count', max((facts ->> 'fanout_dead_letters')::numeric))::text AS facts
  FROM tickwright.workers
 WHERE lost_at IS NULL AND lease_until > clock_timestamp() AND jsonb_typeof(facts -> 'fanout_dead_letters') = 'number'
HAVING max((facts ->> 'fanout_dead_letters')::numeric) > 0;

-- name: fanout_no_consumer
-- Whether enabled entities list a module that is published while no consumer is live. It does not fire unless a consumer has ever been
-- live or has run a task: entities may be created before consumers and the queue are set up.
-- Small: rows per session and module. Index: entities_polled, index only.
WITH RECURSIVE {listed}
SELECT 'consumers' AS subject,
       jsonb_build_object('modules', string_agg(DISTINCT l.name, ', '), 'count', sum(l.entities))::text AS facts
  FROM listed l JOIN tickwright.open_modules o ON o.name = l.name AND o.is_open
 WHERE NOT EXISTS (SELECT FROM tickwright.workers w
                    WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND 'fanout-consumer' = ANY (w.roles))
   AND (EXISTS (SELECT FROM tickwright.workers w WHERE 'fanout-consumer' = ANY (w.roles))
        OR EXISTS (SELECT FROM tickwright.fanout_cursors))
HAVING count(*) > 0;

-- name: fanout_no_handler
-- Published modules that enabled entities list and for which no live consumer has a function, although consumers are live.
-- Small: rows per session and module. Index: entities_polled, index only.
WITH RECURSIVE {listed}, live AS MATERIALIZED (
  SELECT w.facts -> 'modules' AS modules FROM tickwright.workers w
   WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND 'fanout-consumer' = ANY (w.roles)
)
SELECT l.name AS subject, jsonb_build_object('count', sum(l.entities))::text AS facts
  FROM listed l JOIN tickwright.open_modules o ON o.name = l.name AND o.is_open
 WHERE EXISTS (SELECT FROM live) AND NOT EXISTS (SELECT FROM live WHERE modules ? l.name)
 GROUP BY l.name LIMIT 1000;

-- name: fanout_unknown_module
-- Modules that enabled entities list and that do not exist, so they are not polled for them. Lists are written by hand, so a long name is
-- cut. Index: entities_polled, index only; modules_pkey.
WITH RECURSIVE {listed}
SELECT left(l.name, 60) AS subject, jsonb_build_object('count', sum(l.entities))::text AS facts
  FROM listed l WHERE NOT EXISTS (SELECT FROM tickwright.modules m WHERE m.name = l.name)
 GROUP BY left(l.name, 60) ORDER BY sum(l.entities) DESC, left(l.name, 60) LIMIT 100;

-- name: fanout_many_lists
-- Whether entities have more different lists of modules than the rules above read. Index: entities_polled, one lookup per list; modules_pkey.
WITH RECURSIVE {lists}
SELECT 'lists' AS subject, jsonb_build_object('count', 1000)::text AS facts FROM (SELECT FROM lists LIMIT 1001) AS some_of_them
HAVING count(*) > 1000;

-- name: fanout_stale
-- Modules with entities that had no success for three intervals, a timeout and $1, although entity and module existed and calls to the
-- partner were allowed. A gated module counts only while its gate is known to be open, or for entities that it succeeded for before.
-- Reads all lists and all cursors. Index: entities_polled, entities_pkey, fanout_cursors_pkey.
SELECT module AS subject,
       jsonb_build_object('count', count(*), 'entity', (array_agg(code ORDER BY since, code))[1],
                          'since', date_trunc('second', min(since)))::text AS facts
  FROM tickwright.stale_entities
 WHERE since < clock_timestamp() - $1::interval AND (last_success_at IS NOT NULL OR NOT in_doubt)
 GROUP BY module LIMIT 1000;

-- name: fanout_failing
-- Modules with polled entities that failed $1 times or more since their last success: how many, and the last error. It reads all failing
-- cursors of published modules, of which many may belong to entities that are no longer polled. OFFSET 0 makes the planner look up each
-- entity in the index. Index: fanout_cursors_failing, entities_pkey.
WITH polled AS MATERIALIZED (
  SELECT l.list, l.name FROM tickwright.listed_modules l JOIN tickwright.open_modules o ON o.name = l.name
), failing AS MATERIALIZED (
  SELECT f.task_type, f.entity_code, f.last_error_at, left(f.last_error, 200) AS error, e.list
    FROM tickwright.fanout_cursors f
   CROSS JOIN LATERAL (SELECT polling_enabled_modules AS list FROM tickwright.entities
                        WHERE code = f.entity_code AND is_polling_enabled OFFSET 0) AS e
   WHERE f.failures > 1 AND f.failures >= $1::integer AND f.task_type = ANY (ARRAY (SELECT name FROM polled))
)
SELECT task_type AS subject, jsonb_build_object('count', entities, 'entity', entity_code, 'error', error)::text AS facts
  FROM (SELECT DISTINCT ON (f.task_type) f.task_type, f.entity_code, f.error, count(*) OVER (PARTITION BY f.task_type) AS entities
          FROM failing f JOIN polled p ON p.list = f.list AND p.name = f.task_type
         ORDER BY f.task_type, f.last_error_at DESC NULLS LAST LIMIT 1000) AS last;
