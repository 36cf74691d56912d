-- name: scheduler_stopped
-- The selection of slots, which is due a minute ahead, is more than $1 late, or no process has held the selector's lease for longer
-- than $2 (dead-man). Or a tracker has waited for longer than $3 for its slot while no process held the registrar's lease.
-- Small: a row per slot. Indexes: job_config_pkey, tracker_intake_pkey.
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
                    WHERE c.job_name = 'registrar' AND c.running AND c.lease_until > clock_timestamp() - $2::interval);

-- name: config_time_miss
-- Trackers that were registered longer than $1 ago and have no schedule. Index: tracker_intake_pkey (the oldest first).
SELECT 'registrar' AS subject, jsonb_build_object('count', count(*))::text AS facts
  FROM (SELECT i.registered_at FROM tickwright.tracker_intake i ORDER BY i.id LIMIT 10000) AS oldest
 WHERE registered_at < clock_timestamp() - $1::interval
HAVING count(*) > 0;

-- name: missed_previous_poll
-- Partners with more than 1 % of their polls within the last $1 missed: not made when the tracker's next poll was due, because they
-- were late, given up, or deferred by a cap. It leaves out quiet hours, rounded to five minutes as the judge does, and slots from
-- before the partner was changed. A wheel has one slot for a minute; OFFSET 0 makes the planner look up each of them in the index,
-- whatever it estimates for the ledger. Index: poll_slices_pkey.
WITH minutes AS MATERIALIZED (
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
  FROM tickwright.partners p JOIN minutes t ON t.partner_no = p.partner_no
 WHERE p.paused_at IS NULL AND t.since >= p.promised_since
   AND p.partner_no IN (SELECT partner_no FROM minutes WHERE missed > 0)
   AND NOT tickwright.quiet_at(p.settings, t.from_at)
   AND NOT tickwright.quiet_at(p.settings, t.from_at + interval '5 minutes' + t.interval_minutes * interval '6 seconds')
 GROUP BY p.name HAVING sum(t.missed) > 0.01 * sum(t.meant) LIMIT 1000;

-- name: account_lag
-- Accounts with more stale polls in their last interval than their objective allows. Small: a row per account.
SELECT account_id AS subject,
       jsonb_build_object('lag_percent', round(100 * lag::numeric), 'stale', polls - fresh, 'polls', polls, 'since', stale_since)::text AS facts
  FROM tickwright.judged_accounts WHERE stale_since IS NOT NULL AND paused_at IS NULL ORDER BY stale_since LIMIT 1000;

-- name: poll_relay_stalled
-- Shards with polls that were to be released longer than $1 ago and are not published: the oldest waiting row, and rows that are
-- frozen into a batch. Indexes: scheduler_outbox_waiting, two lookups per shard; scheduler_outbox_batch.
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
-- Partners with polls that have waited in the queue for longer than $1 although calls were allowed all that time: the partner is not
-- paused, has no quiet hours, did not ask for silence, and its breaker allows calls (partner_breaker_open reports the others).
-- Index: poll_queue_waiting, one lookup per partner.
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
-- Partners that are not called because they fail, with a call or a change within the last $1. A partner without polls is not tried
-- again, so its breaker stays open and is not reported. Small: a row per partner.
SELECT p.name AS subject, jsonb_build_object('open_until', s.open_until, 'error', left(s.last_error, 200))::text AS facts
  FROM tickwright.partner_states s JOIN tickwright.partners p ON p.partner_no = s.partner_no
 WHERE s.breaker <> 'closed' AND p.paused_at IS NULL
   AND greatest(s.changed_at, s.open_until, s.trial_until) > clock_timestamp() - $1::interval LIMIT 1000;

-- name: partner_not_callable
-- Partners that no process can call although consumers are live: their settings have no http, and no consumer has a function for
-- them. Only those with a slot that was selected within the last interval and was due longer than $1 ago.
-- Small: a row per partner; for those few, poll_places_pkey, and poll_slices_pkey backwards to the first hit.
SELECT p.name AS subject, jsonb_build_object('count', sum(minute.selected))::text AS facts
  FROM tickwright.partners p
  JOIN tickwright.poll_places n ON n.partner_no = p.partner_no
 CROSS JOIN LATERAL (
   SELECT l.selected FROM tickwright.poll_slices l
    WHERE l.due_at BETWEEN clock_timestamp() - $1::interval - make_interval(mins => n.interval_minutes + 2) AND clock_timestamp() - $1::interval
      AND l.partner_no = p.partner_no AND l.interval_minutes = n.interval_minutes AND l.selected > 0
    ORDER BY l.due_at DESC LIMIT 1) AS minute
 WHERE jsonb_typeof(p.settings -> 'http') IS DISTINCT FROM 'object' AND p.paused_at IS NULL
   AND EXISTS (SELECT FROM tickwright.workers w
                WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND 'poll-consumer' = ANY (w.roles))
   AND NOT EXISTS (SELECT FROM tickwright.workers w
                    WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp() AND w.facts -> 'partners' ? p.name)
 GROUP BY p.name LIMIT 1000;

-- name: poll_group_lag
-- Topics with polls that were published longer than $1 ago and are not read: consumers are too few, too slow, or missing. Without
-- consumers the group's position stays, while the relay's ends rise. A topic without new polls for a week is left out: its polls are
-- superseded. Small: a row per partition. Index: poll_ends_pkey.
SELECT topic AS subject,
       jsonb_build_object('late_s', round(date_part('epoch', clock_timestamp() - min(unread_since))::numeric), 'lag', sum(lag),
                          'partitions', count(*), 'readers', count(DISTINCT reader))::text AS facts
  FROM tickwright.poll_lags
 WHERE unread_since < clock_timestamp() - $1::interval AND published_at > clock_timestamp() - interval '7 days'
 GROUP BY topic LIMIT 1000;

-- name: freshness_budget
-- Accounts with more stale polls than their objective allows, both within the last month and within the last interval. The second
-- condition ends the alert when an account meets its objective again. It reads the days of lagging accounts only, the worst 2,000.
-- Index: account_freshness_pkey.
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
-- Whether a wheel with slots was not judged for longer than $1 and 1.2 intervals (a slot's minute is judged after 1.1). Until then
-- the freshness is unknown, and account_lag and freshness_budget report nothing. Small: a row per wheel and slot.
SELECT 'judge' AS subject,
       jsonb_build_object('since', date_trunc('second', min(w.judged_until)), 'wheels', count(*))::text AS facts
  FROM tickwright.poll_wheels w
 WHERE w.judged_until < clock_timestamp() - $1::interval - 1.2 * make_interval(mins => w.interval_minutes)
   AND EXISTS (SELECT FROM tickwright.poll_slots s WHERE s.interval_minutes = w.interval_minutes)
HAVING count(*) > 0;
