-- name: now
-- What changes every second: due jobs, up to $1, and waiting ones, up to $6 (0 counts none); the living sessions ($3 at most) and the
-- counters of those seen after $2; which of the API keys $4 and of the browsers' sessions $7 are valid; the $5 newest jobs. Index:
-- scheduled_tasks_due, one bounded scan per claim range; workers_pkey (small: a row per session of a day), api_keys_pkey, sessions_pkey,
-- and the primary keys of the live table and of each day.
WITH RECURSIVE {lane}, {counted}
SELECT clock_timestamp() AS at, (SELECT cut FROM cut) AS cut,
       (SELECT count(*) FROM (
          SELECT FROM counted CROSS JOIN LATERAL (
            SELECT FROM ONLY tickwright.scheduled_tasks t
             WHERE t.task_type = counted.task_type AND t.priority = counted.priority
               AND coalesce(t.retry_at, t.execute_at) <= now() AND t.status = 'pending' LIMIT $1::integer) AS bounded
           LIMIT $1) AS due) AS due,
       (SELECT count(*) FROM (
          SELECT FROM counted CROSS JOIN LATERAL (
            SELECT FROM ONLY tickwright.scheduled_tasks t
             WHERE t.task_type = counted.task_type AND t.priority = counted.priority
               AND coalesce(t.retry_at, t.execute_at) > now() LIMIT $6::integer) AS bounded
           LIMIT $6) AS waiting) AS waiting,
       (SELECT coalesce(date_part('epoch', clock_timestamp() - min(head.due_at)), 0)
          FROM counted CROSS JOIN LATERAL (
            SELECT coalesce(t.retry_at, t.execute_at) AS due_at FROM ONLY tickwright.scheduled_tasks t
             WHERE t.task_type = counted.task_type AND t.priority = counted.priority
               AND coalesce(t.retry_at, t.execute_at) <= now() AND t.status = 'pending'
             ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT 1) AS head) AS oldest_due_s,
       (SELECT coalesce(json_agg(json_build_object(
                 'id', w.id, 'roles', w.roles, 'seen_s', date_part('epoch', w.seen_at), 'began_s', date_part('epoch', w.started_at),
                 'draining', w.drain_requested_at IS NOT NULL,
                 'counters', CASE WHEN w.seen_at > $2::timestamptz THEN w.facts -> 'counters' END)), '[]')
          FROM (SELECT * FROM tickwright.workers WHERE lost_at IS NULL AND lease_until > clock_timestamp()
                 ORDER BY id DESC LIMIT $3::integer) AS w)::text AS sessions,
       (SELECT count(*) FROM tickwright.workers WHERE lost_at > clock_timestamp() - interval '1 hour') AS lost_lately,
       ARRAY (SELECT k.id FROM tickwright.api_keys k
               WHERE k.id = ANY ($4::bigint[]) AND k.revoked_at IS NULL
                 AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())) AS good_keys,
       ARRAY (SELECT s.id FROM tickwright.sessions s
               WHERE s.id = ANY ($7::bigint[]) AND s.expires_at > clock_timestamp()) AS good_sessions,
       (SELECT coalesce(json_agg(json_build_object(
                 'id', j.id, 'task_type', j.task_type, 'status', j.status, 'attempts', j.attempts, 'max_attempts', j.max_attempts,
                 'due_at', tickwright.shown_at(coalesce(j.retry_at, j.execute_at)), 'error', left(split_part(j.error_message, E'\n', 1), 300))), '[]')
          FROM (SELECT * FROM tickwright.scheduled_tasks ORDER BY id DESC LIMIT $5::integer) AS j)::text AS latest;

-- name: job_gauges
-- Per task type: due, running and upcoming jobs, each counted up to $1, and the age of the oldest due one. Running ones are counted among
-- the $1 oldest due rows. cut: some claim ranges may be left out. Index: scheduled_tasks_due, three bounded scans per claim range.
WITH RECURSIVE {lane}, {counted}
SELECT lane.task_type,
       sum(due.jobs)::bigint AS due, sum(begun.jobs)::bigint AS processing, sum(upcoming.jobs)::bigint AS upcoming,
       coalesce(max(due.oldest_s), 0) AS oldest_due_s, bool_or(cut.cut) AS cut
  FROM counted AS lane CROSS JOIN cut
 CROSS JOIN LATERAL (
   SELECT count(*) AS jobs, date_part('epoch', clock_timestamp() - min(d.due)) AS oldest_s
     FROM (SELECT coalesce(t.retry_at, t.execute_at) AS due FROM ONLY tickwright.scheduled_tasks t
            WHERE t.task_type = lane.task_type AND t.priority = lane.priority AND t.status = 'pending'
              AND coalesce(t.retry_at, t.execute_at) <= now()
            ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT $1) AS d) AS due
 CROSS JOIN LATERAL (
   SELECT count(*) FILTER (WHERE b.status = 'processing') AS jobs
     FROM (SELECT t.status FROM ONLY tickwright.scheduled_tasks t
            WHERE t.task_type = lane.task_type AND t.priority = lane.priority
              AND coalesce(t.retry_at, t.execute_at) <= now()
            ORDER BY coalesce(t.retry_at, t.execute_at) LIMIT $1) AS b) AS begun
 CROSS JOIN LATERAL (
   SELECT count(*) AS jobs
     FROM (SELECT 1 FROM ONLY tickwright.scheduled_tasks t
            WHERE t.task_type = lane.task_type AND t.priority = lane.priority
              AND coalesce(t.retry_at, t.execute_at) > now()
            LIMIT $1) AS u) AS upcoming
 GROUP BY lane.task_type ORDER BY lane.task_type;

-- name: standing
-- Dead letters of both kinds and waiting outbox messages, each counted up to $1; the leases. Indexes: scheduled_tasks_dead_pkey,
-- outbox_dead_pkey, outbox_pkey; leases are a row per job name.
SELECT (SELECT count(*) FROM (SELECT 1 FROM tickwright.scheduled_tasks_dead LIMIT $1) AS j) AS jobs,
       (SELECT count(*) FROM (SELECT 1 FROM tickwright.outbox_dead LIMIT $1) AS o) AS outbox,
       (SELECT count(*) FROM (SELECT 1 FROM tickwright.outbox LIMIT $1) AS w) AS outbox_waiting,
       leases.*
  FROM (SELECT count(*) FILTER (WHERE owner IS NOT NULL AND lease_until >= clock_timestamp()) AS held,
               count(*) FILTER (WHERE owner IS NULL) AS free, coalesce(sum(version), 0)::bigint AS versions,
               coalesce(array_agg(job_name ORDER BY job_name) FILTER (WHERE owner IS NOT NULL AND lease_until < clock_timestamp()), '{}')
                 AS overdue
          FROM (SELECT * FROM tickwright.job_config ORDER BY job_name LIMIT 10000) AS one) AS leases;

-- name: executions
-- The backlog of executions: waiting and for how long, working, and actions of finished ones that have not left; each over at most $1 rows.
-- Then the last five that are working, and the newest one in any state. Index: executions_to_begin, executions_at_work,
-- executions_to_release, executions_pkey, batches_pkey.
SELECT waiting.executions AS waiting, coalesce(waiting.oldest_s, 0) AS oldest_s, working.executions AS working,
       coalesce(releasing.actions, 0)::bigint AS unreleased, latest.latest
  FROM (SELECT count(*) AS executions, date_part('epoch', clock_timestamp() - min(due_at)) AS oldest_s
          FROM (SELECT due_at FROM tickwright.executions
                 WHERE owner IS NULL AND (status = 'NEW' OR (status = 'IN_PROGRESS' AND planned_at IS NULL)) AND due_at <= clock_timestamp()
                 ORDER BY due_at LIMIT $1) AS w) AS waiting
 CROSS JOIN (SELECT count(*) AS executions
               FROM (SELECT FROM tickwright.executions WHERE status = 'IN_PROGRESS' LIMIT $1) AS i) AS working
 CROSS JOIN (SELECT sum(actions - released) AS actions
               FROM (SELECT actions, released FROM tickwright.executions
                      WHERE status IN ('IN_PROGRESS', 'FINISHED') AND chunks_released < chunks LIMIT $1) AS r) AS releasing
 CROSS JOIN (
   SELECT coalesce(json_agg(one ORDER BY one.id DESC), '[]')::text AS latest
     FROM (SELECT e.id, b.name, e.status, e.paused_at IS NOT NULL AS paused, e.chunks, e.chunks_done, e.members, e.seen, e.selected,
                  e.actions, e.released, date_part('epoch', coalesce(e.finished_at, clock_timestamp()) - e.started_at) AS took_s,
                  left(e.error_message, 500) AS error_message
             FROM ((SELECT id FROM tickwright.executions WHERE status = 'IN_PROGRESS' ORDER BY id DESC LIMIT 5)
                   UNION
                   (SELECT id FROM tickwright.executions ORDER BY id DESC LIMIT 1)) AS shown
             JOIN tickwright.executions e USING (id) JOIN tickwright.batches b ON b.id = e.batch_id) AS one) AS latest;

-- name: freshness
-- How fresh accounts are within their last intervals: the share of fresh polls, how many accounts are judged, how many lag, and the worst
-- $1. Small: a row per account.
WITH lag AS MATERIALIZED (SELECT account_id, interval_minutes, lag, polls, fresh, stale_since FROM tickwright.judged_accounts)
SELECT (SELECT (sum(fresh) / nullif(sum(polls), 0))::float8 FROM lag) AS share,
       (SELECT count(*) FROM lag) AS judged, (SELECT count(*) FROM lag WHERE stale_since IS NOT NULL) AS lagging,
       ARRAY (SELECT account_id FROM lag ORDER BY lag DESC, account_id LIMIT $1) AS accounts,
       ARRAY (SELECT lag FROM lag ORDER BY lag DESC, account_id LIMIT $1) AS ratios,
       ARRAY (SELECT interval_minutes FROM lag ORDER BY lag DESC, account_id LIMIT $1) AS intervals;

-- name: alerts
-- Firing alerts counted by rule and severity, five of them (the most severe first, of equal ones the newest), and the highest id. Index:
-- alerts_firing, alerts_pkey.
SELECT (SELECT coalesce(json_agg(one), '[]')
          FROM (SELECT rule, severity, count(*) AS firing FROM tickwright.alerts WHERE state = 'firing' GROUP BY rule, severity) AS one)::text
         AS firing,
       (SELECT coalesce(json_agg(json_build_object('id', a.id, 'rule', a.rule, 'subject', a.subject, 'severity', a.severity,
                                                   'summary', a.summary, 'fired_at', a.fired_at)), '[]')
          FROM (SELECT * FROM tickwright.alerts WHERE state = 'firing'
                 ORDER BY array_position(ARRAY['critical', 'warning', 'info'], severity::text), id DESC LIMIT 5) AS a)::text AS newest,
       (SELECT max(id) FROM tickwright.alerts) AS last_id;

-- name: poll_lags
-- The lag of the consumers, per partition with polls within a week, and the age of the oldest unfinished poll. Small: a row per partition.
-- Index: poll_ends_pkey.
SELECT topic, partition, lag, coalesce(date_part('epoch', clock_timestamp() - unfinished_since), 0) AS oldest_s
  FROM tickwright.poll_lags WHERE published_at > clock_timestamp() - interval '7 days' ORDER BY topic, partition LIMIT 1000;

-- name: polls
-- Trackers, counted up to five times $1 and beyond that by the planner's statistics; unplaced ones; polls without an owner, and the oldest
-- of them; the polls that are released in each of the next sixty seconds. Indexes: trackers_pkey, tracker_intake_pkey, poll_queue_waiting
-- (a probe a partner for the oldest), scheduler_outbox_waiting: a range a shard.
WITH RECURSIVE shards AS (
  (SELECT shard FROM tickwright.scheduler_outbox WHERE batch_no IS NULL ORDER BY shard LIMIT 1)
  UNION ALL
  SELECT next.shard FROM shards s CROSS JOIN LATERAL (
    SELECT o.shard FROM tickwright.scheduler_outbox o WHERE o.batch_no IS NULL AND o.shard > s.shard ORDER BY o.shard LIMIT 1) AS next
), released AS (
  SELECT floor(date_part('epoch', o.release_at - date_trunc('second', now())))::integer AS second, sum(cardinality(o.ids))::bigint AS polls
    FROM (SELECT shard FROM shards LIMIT 1000) AS s CROSS JOIN LATERAL (
      SELECT w.release_at, w.ids FROM tickwright.scheduler_outbox w
       WHERE w.batch_no IS NULL AND w.shard = s.shard AND w.release_at >= date_trunc('second', now())
         AND w.release_at < date_trunc('second', now()) + interval '1 minute') AS o
   GROUP BY 1
)
SELECT (SELECT CASE WHEN count(*) < 5 * $1::integer THEN count(*)
                    ELSE greatest(count(*), (SELECT reltuples FROM pg_class WHERE oid = 'tickwright.trackers'::regclass)) END::bigint
          FROM (SELECT FROM tickwright.trackers LIMIT 5 * $1::integer) AS bounded) AS trackers,
       (SELECT count(*) FROM (SELECT FROM tickwright.tracker_intake LIMIT $1) AS bounded) AS unplaced,
       (SELECT least(coalesce(sum(cardinality(ids)), 0), $1)::bigint
          FROM (SELECT ids FROM tickwright.poll_queue WHERE owner IS NULL LIMIT $1) AS bounded) AS waiting,
       (SELECT coalesce(greatest(date_part('epoch', clock_timestamp() - min(head.due_at)), 0), 0)
          FROM tickwright.partners p CROSS JOIN LATERAL (
            SELECT q.due_at FROM tickwright.poll_queue q
             WHERE q.partner_no = p.partner_no AND q.owner IS NULL ORDER BY q.due_at, q.seq LIMIT 1) AS head) AS oldest_s,
       ARRAY (SELECT coalesce(released.polls, 0) FROM generate_series(0, 59) AS generated (second) LEFT JOIN released ON released.second = generated.second ORDER BY generated.second)
         AS ahead;

-- name: partners
-- What became of each partner's time slots of the last ten minutes, what it allows, and what keeps it from being called. Index:
-- poll_slices_pkey.
SELECT p.name, coalesce(sum(l.selected), 0)::bigint AS selected, coalesce(sum(l.polled), 0)::bigint AS polled,
       coalesce(sum(l.late), 0)::bigint AS late, coalesce(sum(l.superseded), 0)::bigint AS superseded,
       coalesce(round((sum(l.polled) / greatest(60, date_part('epoch', clock_timestamp() - min(l.due_at))))::numeric, 1), 0)::float8 AS polls_per_s,
       coalesce(p.settings ->> 'rate', 'any rate') AS allowed,
       CASE WHEN p.paused_at IS NOT NULL THEN 'paused'
            WHEN s.breaker = 'open' THEN 'breaker open'
            WHEN s.breaker = 'half_open' THEN 'one trial'
            WHEN s.blocked_until > clock_timestamp() THEN 'asked for silence'
            ELSE 'called' END AS state
  FROM tickwright.partners p
  LEFT JOIN tickwright.partner_states s ON s.partner_no = p.partner_no
  LEFT JOIN tickwright.poll_slices l
    ON l.partner_no = p.partner_no AND l.due_at BETWEEN clock_timestamp() - interval '10 minutes' AND clock_timestamp()
 GROUP BY p.name, p.settings, p.paused_at, s.breaker, s.blocked_until ORDER BY p.name LIMIT 20;

-- name: fanout
-- How many entities are polled, up to $1, and for how many registered modules, over a thousand different lists. Then the living consumers:
-- their number, what waits in the queue, what became of tasks in the last minute. Index: entities_polled, modules_pkey; a row per session.
WITH RECURSIVE {lists}
SELECT (SELECT count(*) FROM (SELECT FROM tickwright.entities WHERE is_polling_enabled LIMIT $1) AS bounded) AS entities,
       (SELECT count(DISTINCT m.name) FROM looked l CROSS JOIN LATERAL string_to_table(l.list, ',') AS part
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

-- name: reports
-- Unfinished reports by status, counted up to $1; the results of the last hour, likewise; the newest file among the last thousand that
-- ended: its report, size, address, and time since the request. Index: reports_steps, reports_finished.
SELECT open.*, over.*, last.last
  FROM (SELECT count(*) FILTER (WHERE status = 'pending') AS pending, count(*) FILTER (WHERE status = 'querying') AS querying,
               count(*) FILTER (WHERE status = 'merging') AS merging
          FROM (SELECT status FROM tickwright.reports WHERE step_at IS NOT NULL LIMIT $1) AS open) AS open
 CROSS JOIN (SELECT count(*) FILTER (WHERE status = 'finished') AS finished, count(*) FILTER (WHERE status = 'failed') AS failed
               FROM (SELECT status FROM tickwright.reports WHERE finished_at > clock_timestamp() - interval '1 hour'
                      ORDER BY finished_at DESC LIMIT $1) AS lately) AS over
  LEFT JOIN (SELECT json_build_object('id', id, 'type', type, 'rows', rows, 'bytes', bytes, 'address', file_address,
                                      'took_s', date_part('epoch', finished_at - created_at))::text AS last
               FROM (SELECT * FROM tickwright.reports WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT 1000) AS lately
              WHERE status = 'finished' ORDER BY finished_at DESC LIMIT 1) AS last ON true;
