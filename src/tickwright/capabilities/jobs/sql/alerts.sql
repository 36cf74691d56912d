-- name: unknown_task_type
-- Types that are not registered and have a job that is due for longer than $1, at most a thousand. Of a type that is registered or found,
-- no further claim ranges are read: either may have many. Index: scheduled_tasks_due, one probe per claim range.
WITH RECURSIVE walk AS (
  (SELECT t.task_type, t.priority, EXISTS (SELECT FROM tickwright.task_types k WHERE k.name = t.task_type) AS is_known,
          coalesce(t.due_at, t.retry_at, t.execute_at) <= clock_timestamp() - $1::interval AS is_late
     FROM ONLY tickwright.scheduled_tasks t ORDER BY t.task_type, t.priority, coalesce(t.retry_at, t.execute_at) LIMIT 1)
  UNION ALL
  SELECT n.task_type, n.priority, EXISTS (SELECT FROM tickwright.task_types k WHERE k.name = n.task_type),
         n.due <= clock_timestamp() - $1::interval
    FROM walk w CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority, coalesce(t.due_at, t.retry_at, t.execute_at) AS due FROM ONLY tickwright.scheduled_tasks t
       WHERE (t.task_type, t.priority) > (w.task_type, CASE WHEN w.is_known OR w.is_late THEN 32767 ELSE w.priority END::smallint)
       ORDER BY t.task_type, t.priority, coalesce(t.retry_at, t.execute_at) LIMIT 1) AS n
)
SELECT task_type AS subject, '{}'::jsonb::text AS facts FROM walk WHERE is_late AND NOT is_known LIMIT 1000;

-- name: task_type_gone
-- Types whose endpoint answered 410. Small: a row per type.
SELECT name AS subject, jsonb_build_object('gone_at', gone_at)::text AS facts
  FROM tickwright.task_types WHERE gone_at IS NOT NULL LIMIT 1000;

-- name: dead_letters
-- Dead letters of the last $1 per type, counted up to 30,000. Above a hundred types, types with less than a hundredth each are folded into
-- one row: an alert for each would fire and clear with every round. Then cut is true, because a subject that fired alone may be folded.
-- Index: scheduled_tasks_dead_at.
WITH named AS (
  SELECT subject, count(*) AS n, count(*) OVER () <= 100 OR count(*) * 100 >= sum(count(*)) OVER () AS alone
    FROM (SELECT task_type::text AS subject FROM tickwright.scheduled_tasks_dead
           WHERE completed_at > clock_timestamp() - $1::interval ORDER BY completed_at DESC LIMIT 30000) AS d
   GROUP BY subject
)
SELECT CASE WHEN alone THEN subject ELSE 'many others' END AS subject,
       jsonb_build_object('count', sum(n))::text AS facts, (SELECT sum(n) >= 30000 OR NOT bool_and(alone) FROM named) AS cut
  FROM named GROUP BY 1;

-- name: dead_letters_many
-- Whether more jobs died within $1 than dead_letters reads. Index: scheduled_tasks_dead_at.
SELECT 'letters' AS subject, jsonb_build_object('count', 30000)::text AS facts
 WHERE 30000 < (SELECT count(*) FROM (SELECT FROM tickwright.scheduled_tasks_dead
                                       WHERE completed_at > clock_timestamp() - $1::interval LIMIT 30001) AS jobs);

-- name: lateness
-- Types that may run and whose oldest due job waits for longer than $1 while a worker that serves them is alive; the number of
-- unknown types does not matter. So does a group at which no claim looked since it was ready; one that has reached its limit is not ready. Indexes: scheduled_tasks_due, two probes per
-- claim range; job_groups_ready, job_group_hints_ready.
WITH RECURSIVE {runnable}
SELECT claim_range.task_type AS subject,
       jsonb_build_object('late_s', round(max(date_part('epoch', clock_timestamp() - oldest.due))::numeric))::text AS facts
  FROM runnable AS claim_range JOIN tickwright.task_types k ON k.name = claim_range.task_type
 CROSS JOIN LATERAL (
   (SELECT coalesce(t.retry_at, t.execute_at) AS due FROM ONLY tickwright.scheduled_tasks t
     WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority AND t.status = 'pending'
     ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT 1)
   UNION ALL
   (SELECT g.ready_at FROM tickwright.job_groups g WHERE g.task_type = claim_range.task_type ORDER BY g.ready_at LIMIT 1)
   UNION ALL
   (SELECT h.ready_at FROM tickwright.job_group_hints h WHERE h.task_type = claim_range.task_type ORDER BY h.ready_at LIMIT 1)) AS oldest
 WHERE oldest.due < clock_timestamp() - $1::interval
   AND EXISTS (SELECT FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
                  AND tickwright.serves(w.roles, w.facts, k.target, k.name, k.queue, k.needs))
 GROUP BY claim_range.task_type;

-- name: not_served
-- Types that may run, with a job that is due for longer than $1, which none of the living workers serves: none has its queue, the type
-- itself or its needs. Index: scheduled_tasks_due, one probe per claim range.
WITH RECURSIVE {runnable}
SELECT k.name AS subject, jsonb_build_object('queue', k.queue, 'needs', coalesce(nullif(array_to_string(k.needs, ', '), ''), 'nothing'))::text AS facts
  FROM tickwright.task_types k
 WHERE EXISTS (SELECT FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND w.roles && ARRAY['worker', 'remote'])
   AND NOT EXISTS (SELECT FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
                      AND tickwright.serves(w.roles, w.facts, k.target, k.name, k.queue, k.needs))
   AND EXISTS (SELECT FROM runnable AS claim_range
                WHERE claim_range.task_type = k.name
                  AND EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t
                               WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority AND t.status = 'pending'
                                 AND coalesce(t.retry_at, t.execute_at) < clock_timestamp() - $1::interval))
 LIMIT 1000;

-- name: no_live_worker
-- Whether a job that may run is due for longer than $1 while no worker is alive. Index: scheduled_tasks_due.
WITH RECURSIVE {runnable}
SELECT 'workers' AS subject, '{}'::jsonb::text AS facts
 WHERE NOT EXISTS (SELECT FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
                      AND w.roles && ARRAY['worker', 'remote'])
   AND EXISTS (SELECT FROM runnable AS claim_range
                WHERE EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t
                               WHERE t.task_type = claim_range.task_type AND t.priority = claim_range.priority
                                 AND coalesce(t.retry_at, t.execute_at) < clock_timestamp() - $1::interval));

-- name: schedule_late
-- Schedules that the producer has not read for longer than their grace and $1 after they were due or edited; of the thousand that have been due for
-- longest. Index: schedules_due.
SELECT s.name AS subject, jsonb_build_object('late_s', round(date_part('epoch', clock_timestamp() - greatest(s.due_at, s.counts_from))::numeric))::text AS facts
  FROM (SELECT name, due_at, counts_from, misfire_grace FROM tickwright.schedules
         WHERE due_at < statement_timestamp() - $1::interval ORDER BY due_at LIMIT 1000) AS s
 WHERE greatest(s.due_at, s.counts_from) < clock_timestamp() - $1::interval - s.misfire_grace;

-- name: schedule_failing
-- Schedules whose jobs cannot be made. Index: schedules_failing.
SELECT name AS subject, jsonb_build_object('problem', left(problem, 300))::text AS facts
  FROM tickwright.schedules WHERE problem IS NOT NULL AND paused_at IS NULL LIMIT 1000;

-- name: payload_key_missing
-- Encrypted types that live workers could not read lately, with a key that they lack. Small: a row per session.
SELECT missing.key AS subject, jsonb_build_object('key', min(missing.value), 'workers', count(*))::text AS facts
  FROM tickwright.workers w
 CROSS JOIN LATERAL jsonb_each_text(CASE WHEN jsonb_typeof(w.facts -> 'payload_keys_missing') = 'object' THEN w.facts -> 'payload_keys_missing' ELSE '{}' END)
            AS missing
 WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
 GROUP BY missing.key LIMIT 1000;

-- name: workflow_blocked
-- Of the thousand oldest workflows that run, those of which no job is live: the others wait until a failed one is retried. Indexes: workflows_running,
-- scheduled_tasks_pkey.
SELECT left(w.name, 100) || ' #' || w.id AS subject, jsonb_build_object('open', w.open)::text AS facts
  FROM (SELECT o.* FROM tickwright.workflows o WHERE o.ended_at IS NULL AND o.parent_id IS NULL ORDER BY o.id LIMIT 1000) AS w
 WHERE NOT EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t WHERE t.id > w.id AND t.id <= w.last_id AND t.workflow_id IS NOT NULL);

-- name: workflow_failed
-- Names of workflows that failed within $1, of the newest 30,000 that ended. Index: workflows_ended.
SELECT e.name AS subject, jsonb_build_object('count', count(*))::text AS facts
  FROM (SELECT w.name, w.state FROM tickwright.workflows w
         WHERE w.ended_at > clock_timestamp() - $1::interval AND w.parent_id IS NULL ORDER BY w.ended_at DESC LIMIT 30000) AS e
 WHERE e.state = 'failed' GROUP BY e.name ORDER BY count(*) DESC, e.name LIMIT 100;

-- name: threads_stuck
-- Live sessions with synchronous handlers that were stopped and have not returned. Small: a row per session.
SELECT name || ' #' || id AS subject, jsonb_build_object('count', facts -> 'threads_stuck')::text AS facts
  FROM tickwright.workers
 WHERE lost_at IS NULL AND lease_until > clock_timestamp() AND jsonb_typeof(facts -> 'threads_stuck') = 'number'
   AND (facts ->> 'threads_stuck')::numeric > 0 LIMIT 1000;
