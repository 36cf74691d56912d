-- name: unknown_task_type
-- Types that are not registered, with a job that is due for longer than $1; a thousand of them. What is not due is left out before that. Of a type that
-- is registered, or was found, the other lanes are not read: either may have many. Index: scheduled_tasks_due, a probe a lane.
WITH RECURSIVE walk AS (
  (SELECT t.task_type, t.priority, EXISTS (SELECT FROM tickwright.task_types k WHERE k.name = t.task_type) AS is_known,
          coalesce(t.retry_at, t.execute_at) <= clock_timestamp() - $1::interval AS is_late
     FROM ONLY tickwright.scheduled_tasks t ORDER BY t.task_type, t.priority, coalesce(t.retry_at, t.execute_at) LIMIT 1)
  UNION ALL
  SELECT n.task_type, n.priority, EXISTS (SELECT FROM tickwright.task_types k WHERE k.name = n.task_type),
         n.due <= clock_timestamp() - $1::interval
    FROM walk w CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority, coalesce(t.retry_at, t.execute_at) AS due FROM ONLY tickwright.scheduled_tasks t
       WHERE (t.task_type, t.priority) > (w.task_type, CASE WHEN w.is_known OR w.is_late THEN 32767 ELSE w.priority END::smallint)
       ORDER BY t.task_type, t.priority, coalesce(t.retry_at, t.execute_at) LIMIT 1) AS n
)
SELECT task_type AS subject, '{}'::jsonb::text AS facts FROM walk WHERE is_late AND NOT is_known LIMIT 1000;

-- name: task_type_gone
-- Types whose endpoint answered 410. Small: a row per type.
SELECT name AS subject, jsonb_build_object('gone_at', gone_at)::text AS facts
  FROM tickwright.task_types WHERE gone_at IS NOT NULL LIMIT 1000;

-- name: dead_letters
-- Dead letters of the last $1, per type or destination, of which a URL is cut behind its host; counted up to 30,000. Of more than a hundred
-- of them those with a hundredth each, and the rest as one: a name for each letter would fire and clear with every look. While
-- names are folded the answer is cut: those that fired alone may be among them.
-- Indexes: scheduled_tasks_dead_at, outbox_dead_at.
WITH named AS (
  SELECT subject, is_address, count(*) AS n, count(*) OVER () <= 100 OR count(*) * 100 >= sum(count(*)) OVER () AS alone
    FROM ((SELECT task_type::text AS subject, false AS is_address FROM tickwright.scheduled_tasks_dead
            WHERE completed_at > clock_timestamp() - $1::interval ORDER BY completed_at DESC LIMIT 30000)
          UNION ALL
          (SELECT regexp_replace(destination, '^([^:/?#]+://[^/?#]*)[/?#].*', '\1/…'), true FROM tickwright.outbox_dead
            WHERE died_at > clock_timestamp() - $1::interval ORDER BY died_at DESC LIMIT 30000)) AS d
   GROUP BY subject, is_address
)
SELECT CASE WHEN alone THEN subject ELSE 'many others' END AS subject, alone AND is_address AS is_address,
       jsonb_build_object('count', sum(n))::text AS facts, (SELECT sum(n) >= 30000 OR NOT bool_and(alone) FROM named) AS cut
  FROM named GROUP BY 1, 2;

-- name: dead_letters_many
-- Whether more letters of a kind died within $1 than dead_letters reads. Indexes: scheduled_tasks_dead_at, outbox_dead_at.
SELECT 'letters' AS subject, jsonb_build_object('count', 30000)::text AS facts
 WHERE 30000 < (SELECT count(*) FROM (SELECT FROM tickwright.scheduled_tasks_dead
                                       WHERE completed_at > clock_timestamp() - $1::interval LIMIT 30001) AS jobs)
    OR 30000 < (SELECT count(*) FROM (SELECT FROM tickwright.outbox_dead
                                       WHERE died_at > clock_timestamp() - $1::interval LIMIT 30001) AS messages);

-- name: lateness
-- Types that may run, whose oldest due job waits for longer than $1 while a worker is alive; however many unknown types there are.
-- Index: scheduled_tasks_due, two probes a lane.
WITH RECURSIVE {runnable}
SELECT lane.task_type AS subject,
       jsonb_build_object('late_s', round(max(date_part('epoch', clock_timestamp() - oldest.due))::numeric))::text AS facts
  FROM runnable AS lane
 CROSS JOIN LATERAL (
   SELECT coalesce(t.retry_at, t.execute_at) AS due FROM ONLY tickwright.scheduled_tasks t
    WHERE t.task_type = lane.task_type AND t.priority = lane.priority AND t.status = 'pending'
    ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT 1) AS oldest
 WHERE oldest.due < clock_timestamp() - $1::interval
   AND EXISTS (SELECT FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
                  AND 'worker' = ANY (w.roles))
 GROUP BY lane.task_type;

-- name: no_live_worker
-- Whether a job that may run is due for longer than $1 while no worker is alive. Index: scheduled_tasks_due.
WITH RECURSIVE {runnable}
SELECT 'workers' AS subject, '{}'::jsonb::text AS facts
 WHERE NOT EXISTS (SELECT FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
                      AND 'worker' = ANY (w.roles))
   AND EXISTS (SELECT FROM runnable AS lane
                WHERE EXISTS (SELECT FROM ONLY tickwright.scheduled_tasks t
                               WHERE t.task_type = lane.task_type AND t.priority = lane.priority
                                 AND coalesce(t.retry_at, t.execute_at) < clock_timestamp() - $1::interval));

-- name: possible_data_loss
-- Changes of the database's timeline within the last $1, with their numbers: a second restore may lead to the same timeline.
-- Small: a row per change.
SELECT 'timeline ' || t.timeline || ' #' || t.no AS subject,
       jsonb_build_object('old', b.timeline, 'new', t.timeline, 'noticed_at', t.noticed_at, 'forked_at', coalesce(t.forked_lsn, 'unknown'))::text AS facts
  FROM tickwright.timelines t JOIN tickwright.timelines b ON b.no = t.no - 1
 WHERE t.noticed_at > clock_timestamp() - $1::interval ORDER BY t.no DESC LIMIT 10;

-- name: session_lost
-- Sessions that were declared lost within the last $1. Small: a row per session.
SELECT name || ' #' || id AS subject, jsonb_build_object('lost_at', lost_at)::text AS facts
  FROM tickwright.workers WHERE lost_at > clock_timestamp() - $1::interval LIMIT 1000;

-- name: database_slow
-- Live sessions whose shortest round trips to the database take more than $1 ms, or whose exchanges over the limits of
-- partners take more than $2 ms. Small: a row per session.
SELECT DISTINCT ON (w.id) w.name || ' #' || w.id AS subject,
       jsonb_build_object('what', s.what, 'took_ms', w.facts -> s.fact, 'bound_ms', s.bound_ms)::text AS facts
  FROM tickwright.workers w,
       (VALUES ('round_trip_ms', 'a round trip to the database', $1::integer),
               ('exchange_ms', 'an exchange over the limits of partners', $2::integer)) AS s (fact, what, bound_ms)
 WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
   AND CASE WHEN jsonb_typeof(w.facts -> s.fact) = 'number' THEN (w.facts ->> s.fact)::numeric > s.bound_ms END
 ORDER BY w.id, s.bound_ms LIMIT 1000;

-- name: notifications_pile_up
-- PostgreSQL's queue of notifications, where more than $1 percent of it are used: once it is full, every commit that notifies fails, ours
-- too. A session that listens and stays in a transaction keeps it; the oldest such one is named.
SELECT 'pid ' || coalesce(oldest.pid::text, 'unknown') AS subject,
       jsonb_build_object('percent', round(100 * pg_notification_queue_usage()), 'application', oldest.application_name)::text AS facts
  FROM (SELECT 1) AS one
  LEFT JOIN LATERAL (SELECT a.pid, a.application_name FROM pg_stat_activity a
                      WHERE a.datname = current_database() AND a.xact_start IS NOT NULL AND a.pid <> pg_backend_pid()
                      ORDER BY a.xact_start LIMIT 1) AS oldest ON true
 WHERE 100 * pg_notification_queue_usage() > $1::integer;

-- name: table_lock
-- Sessions that hold up a table of ours by asking for a lock without any right to it: PostgreSQL looks at rights when it has the lock. Processes end
-- them where they may, so these are those that they may not. Catalogues only.
WITH {table_lock}
SELECT 'pid ' || pid AS subject, jsonb_build_object('role', role, 'relation', relation, 'mode', mode)::text AS facts FROM table_lock LIMIT 1000;

-- name: old_snapshot
-- Backends and prepared transactions that hold back the oldest visible row, or a lock of a relation of ours, for longer than $1, by pid. Of other
-- roles' sessions PostgreSQL tells only who is a member of the role or of pg_read_all_stats.
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
-- Tables of ours with more than $1 dead rows, and more dead than live ones.
SELECT relname AS subject, jsonb_build_object('dead', n_dead_tup, 'live', n_live_tup)::text AS facts
  FROM pg_stat_user_tables
 WHERE schemaname = 'tickwright' AND n_dead_tup > $1::bigint AND n_dead_tup > n_live_tup LIMIT 1000;

-- name: threads_stuck
-- Live sessions that report synchronous handlers which were stopped and did not return. Small: a row per session.
SELECT name || ' #' || id AS subject, jsonb_build_object('count', facts -> 'threads_stuck')::text AS facts
  FROM tickwright.workers
 WHERE lost_at IS NULL AND lease_until > clock_timestamp() AND jsonb_typeof(facts -> 'threads_stuck') = 'number'
   AND (facts ->> 'threads_stuck')::numeric > 0 LIMIT 1000;

-- name: report_calls_stuck
-- Live sessions that report calls of listeners which were stopped and did not return. Small: a row per session.
SELECT name || ' #' || id AS subject, jsonb_build_object('count', facts -> 'report_calls_stuck')::text AS facts
  FROM tickwright.workers
 WHERE lost_at IS NULL AND lease_until > clock_timestamp() AND jsonb_typeof(facts -> 'report_calls_stuck') = 'number'
   AND (facts ->> 'report_calls_stuck')::numeric > 0 LIMIT 1000;

-- name: clock
-- The database's clock, to be compared with a monotonic one. From here on each statement of the transaction has the time $1.
SELECT date_part('epoch', clock_timestamp()), set_config('statement_timeout', $1, true);

-- name: fire
-- Open an alert, or say that it is still seen: one row per rule and subject, however often. What is opened together fired at the same
-- instant, by which tell knows it. Index: alerts_firing.
INSERT INTO tickwright.alerts AS a (rule, subject, severity, summary, state, facts, fired_at)
SELECT $1, u.subject, $2, u.summary, 'firing', u.facts::jsonb, statement_timestamp()
  FROM unnest($3::text[], $4::text[], $5::text[]) AS u (subject, summary, facts)
ON CONFLICT (rule, subject) WHERE state = 'firing'
   DO UPDATE SET seen_at = clock_timestamp(), summary = excluded.summary, facts = excluded.facts
RETURNING a.id, a.subject, a.xmax = 0 AS is_new;

-- name: firing
-- What fires of a rule. Index: alerts_firing.
SELECT rule, subject FROM tickwright.alerts WHERE state = 'firing';

-- name: resolve
-- Resolve the alerts of a rule whose subject is no longer in trouble. Index: alerts_firing.
UPDATE tickwright.alerts SET state = 'resolved', resolved_at = clock_timestamp()
 WHERE rule = $1 AND state = 'firing' AND subject <> ALL ($2::text[])
RETURNING id, subject;

-- name: scheduler_stopped
-- Whether turns are not selected although their time for it has come ($1 before they are due), or nobody holds the
-- selector's lease for longer than $2 (dead-man). And whether a tracker waits for longer than $3 for its place while nobody
-- holds the registrar's; whether an occurrence of a batch is late by $3 while nobody holds the producer's, or by $4; and whether actions
-- wait for longer than $3 while nobody holds the checker's. Small: a row per slot, and while nobody is the checker, per execution with actions
-- that wait. Indexes: job_config_pkey, tracker_intake_pkey, batches_due, executions_to_release, execution_chunks_done.
SELECT 'selector' AS subject,
       jsonb_build_object('what', 'Trackers are not polled', 'late_s', round(date_part('epoch', clock_timestamp() - min(s.next_due_at))::numeric + 60))::text AS facts
  FROM tickwright.poll_slots s
HAVING min(s.next_due_at) < clock_timestamp() + interval '1 minute' - $1::interval
    OR (count(*) > 0 AND NOT EXISTS (SELECT FROM tickwright.job_config c
                                      WHERE c.job_name = 'selector' AND c.running AND c.lease_until > clock_timestamp() - $2::interval))
UNION ALL
SELECT 'registrar', jsonb_build_object('what', 'Trackers get no schedule', 'late_s', round(date_part('epoch', clock_timestamp() - first.registered_at)::numeric))::text
  FROM (SELECT i.registered_at FROM tickwright.tracker_intake i ORDER BY i.id LIMIT 1) AS first
 WHERE first.registered_at < clock_timestamp() - $3::interval
   AND NOT EXISTS (SELECT FROM tickwright.job_config c
                    WHERE c.job_name = 'registrar' AND c.running AND c.lease_until > clock_timestamp() - $2::interval)
UNION ALL
SELECT 'campaign-producer',
       jsonb_build_object('what', 'Batches do not begin', 'late_s', round(date_part('epoch', clock_timestamp() - first.next_slot_at)::numeric))::text
  FROM (SELECT b.next_slot_at FROM tickwright.batches b WHERE b.next_slot_at IS NOT NULL ORDER BY b.next_slot_at LIMIT 1) AS first
 WHERE first.next_slot_at < clock_timestamp() - $4::interval
    OR (first.next_slot_at < clock_timestamp() - $3::interval
        AND NOT EXISTS (SELECT FROM tickwright.job_config c
                         WHERE c.job_name = 'campaign-producer' AND c.running AND c.lease_until > clock_timestamp() - $2::interval))
UNION ALL
SELECT 'campaign-checker',
       jsonb_build_object('what', 'Actions of executions do not leave', 'late_s',
                          round(date_part('epoch', clock_timestamp() - min(greatest(e.next_release_at, coalesce(e.finished_at, d.done_at))))::numeric))::text
  FROM tickwright.executions e
 CROSS JOIN LATERAL (SELECT c.done_at FROM tickwright.execution_chunks c
                      WHERE c.execution_id = e.id AND c.state = 'done' ORDER BY c.number LIMIT 1) AS d
 WHERE NOT EXISTS (SELECT FROM tickwright.job_config c
                    WHERE c.job_name = 'campaign-checker' AND c.running AND c.lease_until > clock_timestamp() - $2::interval)
   AND e.status IN ('IN_PROGRESS', 'FINISHED') AND e.chunks_released < e.chunks AND e.paused_at IS NULL
   AND (e.status = 'FINISHED' OR e.snapshot #>> '{action,release}' = 'chunk')
   AND greatest(e.next_release_at, coalesce(e.finished_at, d.done_at)) < clock_timestamp() - $3::interval
HAVING count(*) > 0;

-- name: config_time_miss
-- Trackers that were registered longer than $1 ago and have no schedule. Index: tracker_intake_pkey (the oldest first).
SELECT 'registrar' AS subject, jsonb_build_object('count', count(*))::text AS facts
  FROM (SELECT i.registered_at FROM tickwright.tracker_intake i ORDER BY i.id LIMIT 10000) AS oldest
 WHERE registered_at < clock_timestamp() - $1::interval
HAVING count(*) > 0;

-- name: missed_previous_poll
-- Partners of whose trackers more than a hundredth was meant by turns within the last $1 and not polled when the next one
-- was due: late, given up, or left to a later turn because their account is capped. Without turns of quiet hours, of which the
-- edges are taken to five minutes, as the judge leaves them out, and without those from before a partner was changed. A wheel has
-- one slot for a minute; OFFSET 0 keeps each a probe, whatever the planner believes of the ledger. Index: poll_slices_pkey.
WITH turns AS MATERIALIZED (
  SELECT l.partner_no, w.interval_minutes, date_bin('5 minutes', minute.at, 'epoch') AS from_at, min(minute.at) AS since,
         sum(l.selected + l.deferred) AS meant, sum(l.selected + l.deferred - l.polled) AS missed
    FROM tickwright.poll_wheels w
   CROSS JOIN LATERAL generate_series(
     date_trunc('minute', clock_timestamp() - $1::interval - make_interval(mins => w.interval_minutes)) + interval '1 minute',
     clock_timestamp() - make_interval(mins => w.interval_minutes) - interval '1 minute', interval '1 minute') AS minute (at)
   CROSS JOIN LATERAL (
     SELECT s.partner_no, s.selected, s.deferred, s.polled FROM tickwright.poll_slices s
      WHERE s.due_at = minute.at
        AND s.slot_id = w.first_slot_id + (date_part('epoch', minute.at)::bigint / 60 % w.interval_minutes)::integer OFFSET 0) AS l
   GROUP BY 1, 2, 3
)
SELECT p.name AS subject, jsonb_build_object('count', sum(t.missed), 'since', min(t.since))::text AS facts
  FROM tickwright.partners p JOIN turns t ON t.partner_no = p.partner_no
 WHERE p.paused_at IS NULL AND t.since >= p.promised_since
   AND p.partner_no IN (SELECT partner_no FROM turns WHERE missed > 0)
   AND NOT tickwright.quiet_at(p.settings, t.from_at)
   AND NOT tickwright.quiet_at(p.settings, t.from_at + interval '5 minutes' + t.interval_minutes * interval '6 seconds')
 GROUP BY p.name HAVING sum(t.missed) > 0.01 * sum(t.meant) LIMIT 1000;

-- name: account_lag
-- Accounts of whose last interval more is stale than their objective allows. Small: a row per account.
SELECT account_id AS subject,
       jsonb_build_object('lag_percent', round(100 * lag::numeric), 'stale', polls - fresh, 'polls', polls, 'since', stale_since)::text AS facts
  FROM tickwright.judged_accounts WHERE stale_since IS NOT NULL AND paused_at IS NULL ORDER BY stale_since LIMIT 1000;

-- name: poll_relay_stalled
-- Shards whose polls were to be released longer than $1 ago and are not published: the oldest that waits, and what is
-- frozen into a batch. Indexes: scheduler_outbox_waiting, two probes a shard; scheduler_outbox_batch.
WITH RECURSIVE shards AS (
  (SELECT o.shard FROM tickwright.scheduler_outbox o WHERE o.batch_no IS NULL ORDER BY o.shard LIMIT 1)
  UNION ALL
  SELECT n.shard
    FROM shards s CROSS JOIN LATERAL (
      SELECT o.shard FROM tickwright.scheduler_outbox o
       WHERE o.batch_no IS NULL AND o.shard > s.shard ORDER BY o.shard LIMIT 1) AS n
), oldest AS (
  SELECT s.shard, o.release_at
    FROM shards s CROSS JOIN LATERAL (
      SELECT o.release_at FROM tickwright.scheduler_outbox o
       WHERE o.batch_no IS NULL AND o.shard = s.shard ORDER BY o.release_at LIMIT 1) AS o
  UNION ALL
  SELECT o.shard, o.release_at FROM tickwright.scheduler_outbox o WHERE o.batch_no IS NOT NULL
)
SELECT shard::text AS subject,
       jsonb_build_object('late_s', round(date_part('epoch', clock_timestamp() - min(release_at))::numeric))::text AS facts
  FROM oldest GROUP BY shard HAVING min(release_at) < clock_timestamp() - $1::interval;

-- name: polls_wait
-- Partners whose polls wait in the queue for longer than $1 although they could be called all that time: not paused, not in quiet hours, not
-- silent because they said so, and not failing, of which partner_breaker_open tells. Index: poll_queue_waiting, a probe a partner.
SELECT p.name AS subject,
       jsonb_build_object('late_s', round(date_part('epoch', clock_timestamp() - oldest.due_at)::numeric))::text AS facts
  FROM tickwright.partners p
 CROSS JOIN LATERAL (SELECT q.due_at FROM tickwright.poll_queue q
                      WHERE q.partner_no = p.partner_no AND q.owner IS NULL ORDER BY q.due_at LIMIT 1) AS oldest
  LEFT JOIN tickwright.partner_states s ON s.partner_no = p.partner_no
 WHERE p.paused_at IS NULL
   AND greatest(oldest.due_at, p.promised_since, s.blocked_until, s.open_until, s.changed_at) < clock_timestamp() - $1::interval
   AND NOT tickwright.quiet_at(p.settings, clock_timestamp())
   AND NOT tickwright.quiet_at(p.settings, clock_timestamp() - $1::interval)
 LIMIT 1000;

-- name: partner_breaker_open
-- Partners that nobody calls because they fail, and that somebody tried within the last $1: one that nobody has polls for is
-- never tried again, and its breaker stays as it is. Small: a row per partner.
SELECT p.name AS subject, jsonb_build_object('open_until', s.open_until, 'error', left(s.last_error, 200))::text AS facts
  FROM tickwright.partner_states s JOIN tickwright.partners p ON p.partner_no = s.partner_no
 WHERE s.breaker <> 'closed' AND p.paused_at IS NULL
   AND greatest(s.changed_at, s.open_until, s.trial_until) > clock_timestamp() - $1::interval LIMIT 1000;

-- name: partner_not_callable
-- Partners that nobody can call although consumers live: their settings have no http, and no consumer has a function for
-- them. Only those with a turn that was selected within the last interval and was due longer than $1 ago.
-- Small: a row per partner; for those few, poll_places_pkey, and poll_slices_pkey backwards to the first hit.
SELECT p.name AS subject, jsonb_build_object('count', sum(turn.selected))::text AS facts
  FROM tickwright.partners p
  JOIN tickwright.poll_places n ON n.partner_no = p.partner_no
 CROSS JOIN LATERAL (
   SELECT l.selected FROM tickwright.poll_slices l
    WHERE l.due_at BETWEEN clock_timestamp() - $1::interval - make_interval(mins => n.interval_minutes + 2) AND clock_timestamp() - $1::interval
      AND l.partner_no = p.partner_no AND l.interval_minutes = n.interval_minutes AND l.selected > 0
    ORDER BY l.due_at DESC LIMIT 1) AS turn
 WHERE jsonb_typeof(p.settings -> 'http') IS DISTINCT FROM 'object' AND p.paused_at IS NULL
   AND EXISTS (SELECT FROM tickwright.workers w
                WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND 'poll-consumer' = ANY (w.roles))
   AND NOT EXISTS (SELECT FROM tickwright.workers w
                    WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND w.facts -> 'partners' ? p.name)
 GROUP BY p.name LIMIT 1000;

-- name: poll_group_lag
-- Topics with polls that were published longer than $1 ago and that no consumer has read: too few read, too slowly, or none at all
-- (then nobody moves the group's position, and the relay's ends go on). A topic that no poll went to for a week is left
-- out: its polls are superseded. Small: a row per partition. Index: poll_ends_pkey.
SELECT topic AS subject,
       jsonb_build_object('late_s', round(date_part('epoch', clock_timestamp() - min(unread_since))::numeric), 'lag', sum(lag),
                          'partitions', count(*), 'readers', count(DISTINCT reader))::text AS facts
  FROM tickwright.poll_lags
 WHERE unread_since < clock_timestamp() - $1::interval AND published_at > clock_timestamp() - interval '7 days'
 GROUP BY topic LIMIT 1000;

-- name: freshness_budget
-- Accounts of whose polls within the last month more is stale than their objective allows, and of those within the last
-- interval, too: who has overdrawn his budget and keeps to the objective again is not told of all month long. The days are
-- looked at of those alone who lag now, the worst 2,000. Index: account_freshness_pkey.
WITH lately AS MATERIALIZED (
  SELECT j.account_no, j.account_id, j.polls, j.fresh, c.freshness_objective AS objective
    FROM tickwright.judged_accounts j JOIN tickwright.polling_schedule_config c USING (account_no)
   WHERE j.stale_since IS NOT NULL AND j.paused_at IS NULL ORDER BY j.polls - j.fresh DESC LIMIT 2000
)
SELECT l.account_id AS subject,
       jsonb_build_object('objective_percent', round(100 * l.objective::numeric, 2), 'percent', round(100 * m.fresh / m.polls, 2),
                          'recent_percent', round(100 * l.fresh::numeric / l.polls, 2))::text AS facts
  FROM lately l
 CROSS JOIN LATERAL (SELECT sum(f.polls) AS polls, sum(f.fresh) AS fresh FROM tickwright.account_freshness f
                      WHERE f.account_no = l.account_no) AS m
 WHERE m.polls - m.fresh > (1 - l.objective) * m.polls ORDER BY m.polls - m.fresh DESC LIMIT 1000;

-- name: freshness_unknown
-- Whether a wheel with slots was not judged for longer than $1 and 1.2 intervals (a turn's time is over after 1.1): then nobody
-- knows how fresh accounts are, and account_lag and freshness_budget are silent. Small: a row per wheel and slot.
SELECT 'judge' AS subject,
       jsonb_build_object('since', date_trunc('second', min(w.judged_until)), 'wheels', count(*))::text AS facts
  FROM tickwright.poll_wheels w
 WHERE w.judged_until < clock_timestamp() - $1::interval - 1.2 * make_interval(mins => w.interval_minutes)
   AND EXISTS (SELECT FROM tickwright.poll_slots s WHERE s.interval_minutes = w.interval_minutes)
HAVING count(*) > 0;

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

-- name: report_failed
-- Types of which reports failed within $1: how many of the last 10,000 that failed, and why the last one did. Index: reports_finished.
SELECT f.type AS subject,
       jsonb_build_object('count', count(*), 'report', (array_agg(f.id ORDER BY f.finished_at DESC))[1],
                          'error', left((array_agg(f.error ORDER BY f.finished_at DESC))[1], 300))::text AS facts
  FROM (SELECT id, type, finished_at, error FROM tickwright.reports
         WHERE finished_at > clock_timestamp() - $1::interval AND status = 'failed' ORDER BY finished_at DESC LIMIT 10000) AS f
 GROUP BY f.type ORDER BY count(*) DESC LIMIT 1000;

-- name: report_overdue
-- Types with reports that are not over although their deadline passed $1 ago: a step is due by then at the latest, so nobody takes
-- steps, or somebody holds one and does not end. Counted up to 10,000. Index: reports_steps.
SELECT o.type AS subject,
       jsonb_build_object('count', count(*), 'report', (array_agg(o.id ORDER BY o.deadline_at))[1],
                          'late_s', round(date_part('epoch', clock_timestamp() - min(o.deadline_at))::numeric))::text AS facts
  FROM (SELECT id, type, deadline_at FROM tickwright.reports
         WHERE (step_at < clock_timestamp() - $1::interval OR step_at = 'infinity') AND deadline_at < clock_timestamp() - $1::interval
         LIMIT 10000) AS o
 GROUP BY o.type LIMIT 1000;

-- name: report_unserved
-- Functions and sources whose parts are due and that no process of the role that lives has; and the role itself, where steps are due
-- and nobody lives who has it. Services are outside, so nobody knows. Counted up to 10,000. Small: a row per session.
-- Index: report_parts_due, two probes for each that is waited for; reports_steps.
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

-- name: execution_failed
-- Batches of which executions failed within $1 and were not retried: how many of the last 10,000 that failed, and why the last one did.
-- Index: executions_ended, batches_pkey.
SELECT b.name AS subject,
       jsonb_build_object('count', count(*), 'execution', (array_agg(f.id ORDER BY f.finished_at DESC))[1],
                          'error', left((array_agg(f.error_message ORDER BY f.finished_at DESC))[1], 300))::text AS facts
  FROM (SELECT id, batch_id, finished_at, error_message FROM tickwright.executions
         WHERE finished_at > clock_timestamp() - $1::interval AND status = 'EXCEPTION_OCCURRED' ORDER BY finished_at DESC LIMIT 10000) AS f
  JOIN tickwright.batches b ON b.id = f.batch_id
 GROUP BY b.name ORDER BY count(*) DESC LIMIT 1000;

-- name: execution_backlog
-- Batches with executions that have been due for longer than $1 and that nobody has begun, though nobody has paused them. Counted up to 10,000.
-- Index: executions_to_begin, batches_pkey.
SELECT b.name AS subject,
       jsonb_build_object('count', count(*), 'execution', (array_agg(n.id ORDER BY n.slot_at))[1],
                          'late_s', round(date_part('epoch', clock_timestamp() - min(n.due_at))::numeric))::text AS facts
  FROM (SELECT id, batch_id, slot_at, due_at FROM tickwright.executions
         WHERE due_at < clock_timestamp() - $1::interval AND owner IS NULL AND status = 'NEW' AND paused_at IS NULL
         ORDER BY due_at LIMIT 10000) AS n
  JOIN tickwright.batches b ON b.id = n.batch_id
 GROUP BY b.name ORDER BY min(n.due_at) LIMIT 1000;

-- name: execution_stalled
-- Executions at work of which no chunk has been done for $1, though nobody has paused them and their rate would let one begin; looked at are the hundred
-- chunks about the number of those that are done. A resume and the claim behind a retry count as a beginning: due_at, unless an attempt to cut it moved that on. Index: executions_at_work, execution_chunks_pkey, batches_pkey.
SELECT b.name AS subject,
       jsonb_build_object('execution', e.id, 'done', e.chunks_done, 'chunks', e.chunks,
                          'idle_s', round(date_part('epoch', clock_timestamp() - m.moved_at)::numeric))::text AS facts
  FROM tickwright.executions e JOIN tickwright.batches b ON b.id = e.batch_id
 CROSS JOIN LATERAL (
   SELECT greatest(e.started_at, e.planned_at, CASE WHEN e.tries = 0 THEN e.due_at END, max(c.done_at)) AS moved_at FROM tickwright.execution_chunks c
    WHERE c.execution_id = e.id AND c.number BETWEEN e.chunks_done - 50 AND e.chunks_done + 49) AS m
 WHERE e.status = 'IN_PROGRESS' AND e.paused_at IS NULL AND e.next_chunk_at <= clock_timestamp()
   AND m.moved_at < clock_timestamp() - $1::interval
 LIMIT 1000;
