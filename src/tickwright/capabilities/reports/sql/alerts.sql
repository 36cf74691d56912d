-- name: report_calls_stuck
-- Live sessions with listener calls that were stopped and did not return. Small: a row per session.
SELECT name || ' #' || id AS subject, jsonb_build_object('count', facts -> 'report_calls_stuck')::text AS facts
  FROM tickwright.workers
 WHERE lost_at IS NULL AND lease_until > clock_timestamp() AND jsonb_typeof(facts -> 'report_calls_stuck') = 'number'
   AND (facts ->> 'report_calls_stuck')::numeric > 0 LIMIT 1000;

-- name: report_failed
-- Types with failed reports within $1: the number among the last 10,000 failures, and the last error. Index: reports_finished.
SELECT f.type AS subject,
       jsonb_build_object('count', count(*), 'report', (array_agg(f.id ORDER BY f.finished_at DESC))[1],
                          'error', left((array_agg(f.error ORDER BY f.finished_at DESC))[1], 300))::text AS facts
  FROM (SELECT id, type, finished_at, error FROM tickwright.reports
         WHERE finished_at > clock_timestamp() - $1::interval AND status = 'failed' ORDER BY finished_at DESC LIMIT 10000) AS f
 GROUP BY f.type ORDER BY count(*) DESC LIMIT 1000;

-- name: report_overdue
-- Types with reports that are still open although their deadline passed $1 ago. A step is due at the deadline at the latest, so either no process
-- takes steps, or a process holds one and does not end. Counted up to 10,000. Index: reports_steps.
SELECT o.type AS subject,
       jsonb_build_object('count', count(*), 'report', (array_agg(o.id ORDER BY o.deadline_at))[1],
                          'late_s', round(date_part('epoch', clock_timestamp() - min(o.deadline_at))::numeric))::text AS facts
  FROM (SELECT id, type, deadline_at FROM tickwright.reports
         WHERE (step_at < clock_timestamp() - $1::interval OR step_at = 'infinity') AND deadline_at < clock_timestamp() - $1::interval
         LIMIT 10000) AS o
 GROUP BY o.type LIMIT 1000;

-- name: report_unserved
-- Functions and sources with due parts that no live process of the role serves; and the role itself, if steps are due and no live process has it.
-- Services are external, so they are left out. Counted up to 10,000. Small: a row per session.
-- Index: report_parts_due, two probes for each function or source; reports_steps.
WITH RECURSIVE waited AS (
  (SELECT p.served_by, p.due_at, p.report_id, 1 AS n FROM tickwright.report_parts p
    WHERE p.state = 'due' ORDER BY p.served_by, p.due_at LIMIT 1)
  UNION ALL
  SELECT next.served_by, next.due_at, next.report_id, w.n + 1
    FROM waited w CROSS JOIN LATERAL (
      SELECT p.served_by, p.due_at, p.report_id FROM tickwright.report_parts p
       WHERE p.state = 'due' AND p.served_by > w.served_by ORDER BY p.served_by, p.due_at LIMIT 1) AS next
   WHERE w.n < 1000
), live AS MATERIALIZED (
  SELECT w.facts -> 'serves' AS serves FROM tickwright.workers w
   WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND 'report-listener' = ANY (w.roles)
)
SELECT left(w.served_by, 200) AS subject,
       jsonb_build_object('what', 'parts', 'report', w.report_id, 'count',
         (SELECT count(*) FROM (SELECT FROM tickwright.report_parts p WHERE p.state = 'due' AND p.served_by = w.served_by
                                   AND p.due_at <= clock_timestamp() LIMIT 10000) AS some_of_them))::text AS facts
  FROM waited w
 WHERE w.due_at <= clock_timestamp() AND w.served_by NOT LIKE 'service:%' AND NOT EXISTS (SELECT FROM live WHERE serves ? w.served_by)
UNION ALL
SELECT 'report-listener', jsonb_build_object('what', 'steps', 'report', min(s.id), 'count', count(*))::text
  FROM (SELECT id FROM tickwright.reports WHERE step_at <= clock_timestamp() ORDER BY step_at LIMIT 10000) AS s
 WHERE NOT EXISTS (SELECT FROM live)
HAVING count(*) > 0;
