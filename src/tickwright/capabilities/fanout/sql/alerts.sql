-- name: fanout_dead_letters
-- Dead letters of fan-out's queue as consumers that live have counted them: the largest count, since one that cannot count
-- keeps its last one, and is no reason to call it over. Small: a row per session.
SELECT 'fanout' AS subject, jsonb_build_object('count', max((facts ->> 'fanout_dead_letters')::numeric))::text AS facts
  FROM tickwright.workers
 WHERE lost_at IS NULL AND lease_until > clock_timestamp() AND jsonb_typeof(facts -> 'fanout_dead_letters') = 'number'
HAVING max((facts ->> 'fanout_dead_letters')::numeric) > 0;

-- name: fanout_no_consumer
-- Whether enabled entities name a module that is published while no consumer lives. Silent where none ever lived or ran anything
-- as far as is known: there entities are entered before anybody sets up consumers, perhaps before there is a queue.
-- Small: rows per session and module. Index: entities_polled, of which the rows are not read.
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
-- Modules that are published, that enabled entities name, and for which no consumer that lives has a function although some live.
-- Small: rows per session and module. Index: entities_polled, of which the rows are not read.
WITH RECURSIVE {listed}, live AS MATERIALIZED (
  SELECT w.facts -> 'modules' AS modules FROM tickwright.workers w
   WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND 'fanout-consumer' = ANY (w.roles)
)
SELECT l.name AS subject, jsonb_build_object('count', sum(l.entities))::text AS facts
  FROM listed l JOIN tickwright.open_modules o ON o.name = l.name AND o.is_open
 WHERE EXISTS (SELECT FROM live) AND NOT EXISTS (SELECT FROM live WHERE modules ? l.name)
 GROUP BY l.name LIMIT 1000;

-- name: fanout_unknown_module
-- Modules that enabled entities name and that nobody has set up: nobody is polled for them. A list is written by hand, so a name
-- is cut. Index: entities_polled, of which the rows are not read; modules_pkey.
WITH RECURSIVE {listed}
SELECT left(l.name, 60) AS subject, jsonb_build_object('count', sum(l.entities))::text AS facts
  FROM listed l WHERE NOT EXISTS (SELECT FROM tickwright.modules m WHERE m.name = l.name)
 GROUP BY left(l.name, 60) ORDER BY sum(l.entities) DESC, left(l.name, 60) LIMIT 100;

-- name: fanout_many_lists
-- Whether entities have more different lists of modules than the rules above read. Index: entities_polled, a probe a list; modules_pkey.
WITH RECURSIVE {lists}
SELECT 'lists' AS subject, jsonb_build_object('count', 1000)::text AS facts FROM (SELECT FROM lists LIMIT 1001) AS some_of_them
HAVING count(*) > 1000;

-- name: fanout_stale
-- Modules of which entities had no success for three intervals, a timeout and $1, though both were there and their partners could
-- be called; one that is gated only while its gate is known to be open, or where it ran before. Reads the lists and the
-- ledger whole. Index: entities_polled, entities_pkey, fanout_cursors_pkey.
SELECT module AS subject,
       jsonb_build_object('count', count(*), 'entity', (array_agg(code ORDER BY since, code))[1],
                          'since', date_trunc('second', min(since)))::text AS facts
  FROM tickwright.stale_entities
 WHERE since < clock_timestamp() - $1::interval AND (last_success_at IS NOT NULL OR NOT in_doubt)
 GROUP BY module LIMIT 1000;

-- name: fanout_failing
-- Modules of which entities that are polled failed $1 times or more without a success between: how many, and the last error. Reads all that
-- fail of open modules: those that are polled no more may be any number of them; OFFSET 0 keeps each entity a probe.
-- Index: fanout_cursors_failing, entities_pkey.
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
