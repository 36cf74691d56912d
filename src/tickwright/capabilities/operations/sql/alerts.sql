-- name: dead_letters
-- Dead letters of the last $1 per destination, a URL cut behind its host; counted up to 30,000. Above a hundred destinations, those with
-- less than a hundredth each are folded into one row, and cut is true. Index: outbox_dead_at.
WITH named AS (
  SELECT subject, count(*) AS n, count(*) OVER () <= 100 OR count(*) * 100 >= sum(count(*)) OVER () AS alone
    FROM (SELECT regexp_replace(destination, '^([^:/?#]+://[^/?#]*)[/?#].*', '\1/…') AS subject FROM tickwright.outbox_dead
           WHERE died_at > clock_timestamp() - $1::interval ORDER BY died_at DESC LIMIT 30000) AS d
   GROUP BY subject
)
SELECT CASE WHEN alone THEN subject ELSE 'many others' END AS subject,
       jsonb_build_object('count', sum(n))::text AS facts, (SELECT sum(n) >= 30000 OR NOT bool_and(alone) FROM named) AS cut
  FROM named GROUP BY 1;

-- name: dead_letters_many
-- Whether more messages died within $1 than dead_letters reads. Index: outbox_dead_at.
SELECT 'letters' AS subject, jsonb_build_object('count', 30000)::text AS facts
 WHERE 30000 < (SELECT count(*) FROM (SELECT FROM tickwright.outbox_dead
                                       WHERE died_at > clock_timestamp() - $1::interval LIMIT 30001) AS messages);

-- name: possible_data_loss
-- Changes of the database's timeline within the last $1, with their numbers: a second restore may lead to the same timeline. Small: a row
-- per change.
SELECT 'timeline ' || t.timeline || ' #' || t.no AS subject,
       jsonb_build_object('old', b.timeline, 'new', t.timeline, 'noticed_at', t.noticed_at, 'forked_at', coalesce(t.forked_lsn, 'unknown'))::text AS facts
  FROM tickwright.timelines t JOIN tickwright.timelines b ON b.no = t.no - 1
 WHERE t.noticed_at > clock_timestamp() - $1::interval ORDER BY t.no DESC LIMIT 10;

-- name: session_lost
-- Sessions that were declared lost within the last $1. Small: a row per session.
SELECT name || ' #' || id AS subject, jsonb_build_object('lost_at', lost_at)::text AS facts
  FROM tickwright.workers WHERE lost_at > clock_timestamp() - $1::interval LIMIT 1000;

-- name: database_slow
-- Live sessions whose shortest round trips to the database take more than $1 ms, or whose exchanges over the limits of partners take more
-- than $2 ms. Small: a row per session.
SELECT DISTINCT ON (w.id) w.name || ' #' || w.id AS subject,
       jsonb_build_object('what', s.what, 'took_ms', w.facts -> s.fact, 'bound_ms', s.bound_ms)::text AS facts
  FROM tickwright.workers w,
       (VALUES ('round_trip_ms', 'a round trip to the database', $1::integer),
               ('exchange_ms', 'an exchange over the limits of partners', $2::integer)) AS s (fact, what, bound_ms)
 WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
   AND CASE WHEN jsonb_typeof(w.facts -> s.fact) = 'number' THEN (w.facts ->> s.fact)::numeric > s.bound_ms END
 ORDER BY w.id, s.bound_ms LIMIT 1000;

-- name: notifications_pile_up
-- The use of PostgreSQL's notification queue above $1 percent: when it is full, every commit that notifies fails. A listening session that
-- stays in a transaction keeps it full; the session of the oldest transaction is the subject.
SELECT 'pid ' || coalesce(oldest.pid::text, 'unknown') AS subject,
       jsonb_build_object('percent', round(100 * pg_notification_queue_usage()), 'application', oldest.application_name)::text AS facts
  FROM (SELECT 1) AS one
  LEFT JOIN LATERAL (SELECT a.pid, a.application_name FROM pg_stat_activity a
                      WHERE a.datname = current_database() AND a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid()
                      ORDER BY a.xact_start LIMIT 1) AS oldest ON true
 WHERE 100 * pg_notification_queue_usage() > $1::integer;

-- name: table_lock
-- Sessions that block a table of Tickwright while they wait for a lock without any right to it: PostgreSQL checks rights after it has the
-- lock. Processes end such sessions where they may; these are the others. Catalogs only.
WITH {table_lock}
SELECT 'pid ' || pid AS subject, jsonb_build_object('role', role, 'relation', relation, 'mode', mode)::text AS facts FROM table_lock LIMIT 1000;

-- name: old_snapshot
-- Backends and prepared transactions that hold back the oldest visible row, or a lock of a relation of Tickwright, for longer than $1, by
-- pid. PostgreSQL shows sessions of other roles only to members of the role or of pg_read_all_stats.
SELECT 'pid ' || pid AS subject,
       jsonb_build_object('age_s', round(date_part('epoch', clock_timestamp() - xact_start)::numeric), 'state', state,
                          'application', application_name)::text AS facts
  FROM pg_stat_activity
 WHERE xact_start < clock_timestamp() - $1::interval
   AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL
        OR pid IN (SELECT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE c.relnamespace = 'tickwright'::regnamespace))
   AND backend_type = 'client backend' AND datname = current_database()
UNION ALL
SELECT 'prepared ' || gid, jsonb_build_object('age_s', round(date_part('epoch', clock_timestamp() - prepared)::numeric))::text
  FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - $1::interval AND database = current_database()
 LIMIT 1000;

-- name: dead_rows
-- Tables of Tickwright with more than $1 dead rows, and more dead than live ones.
SELECT relname AS subject, jsonb_build_object('dead', n_dead_tup, 'live', n_live_tup)::text AS facts
  FROM pg_stat_user_tables
 WHERE schemaname = 'tickwright' AND n_dead_tup > $1::bigint AND n_dead_tup > n_live_tup LIMIT 1000;

-- name: clock
-- The database's clock, for comparison with a monotonic one. From here on, each statement of the transaction has the time $1.
SELECT date_part('epoch', clock_timestamp()), set_config('statement_timeout', $1, true);

-- name: fire
-- Open or refresh an alert: one row per rule and subject. Alerts that are opened together have the same fired_at, by which the query
-- notify of alert_receivers.sql finds them. Index: alerts_firing.
INSERT INTO tickwright.alerts AS a (rule, subject, severity, summary, state, facts, fired_at)
SELECT $1, u.subject, $2, u.summary, 'firing', u.facts::jsonb, statement_timestamp()
  FROM unnest($3::text[], $4::text[], $5::text[]) AS u (subject, summary, facts)
ON CONFLICT (rule, subject) WHERE state = 'firing'
   DO UPDATE SET seen_at = clock_timestamp(), summary = excluded.summary, facts = excluded.facts
RETURNING a.id, a.subject, a.xmax = 0 AS is_new;

-- name: firing
-- The firing alerts. Index: alerts_firing.
SELECT rule, subject FROM tickwright.alerts WHERE state = 'firing';

-- name: resolve
-- Resolve the alerts of a rule whose subject is not among $2. Index: alerts_firing.
UPDATE tickwright.alerts SET state = 'resolved', resolved_at = clock_timestamp()
 WHERE rule = $1 AND state = 'firing' AND subject <> ALL ($2::text[])
RETURNING id, subject;
