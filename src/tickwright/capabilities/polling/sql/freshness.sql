-- name: to_judge
-- The next slot of each wheel to judge: each of its polls was either made within a tenth of its interval after its second, or is
-- stale by now. It goes back one interval at most, because the ledger deletes older polls. Small: a row per wheel.
SELECT w.first_slot_id + (date_part('epoch', minute.due_at)::bigint / 60 % w.interval_minutes)::integer AS slot_id,
       w.interval_minutes, minute.due_at
  FROM tickwright.poll_wheels w
 CROSS JOIN LATERAL (
   SELECT date_trunc('minute', clock_timestamp() - interval '65 seconds' - w.interval_minutes * interval '6 seconds') AS at) AS last
 CROSS JOIN LATERAL (
   SELECT greatest(w.judged_until + interval '1 minute', last.at - make_interval(mins => w.interval_minutes - 1)) AS due_at) AS minute
 WHERE minute.due_at <= last.at ORDER BY minute.due_at, w.interval_minutes;

-- name: judge
-- Judge the minute $2 of slot $1, of interval $3, once. Per account: how many trackers were to be polled, how many were polled within
-- a tenth of the interval, and the greatest age. Not stale are trackers that were in the slot for less than an interval or were polled
-- otherwise since its minute before. Not judged are unwanted trackers, and those of an account or partner that was changed since or
-- had quiet hours. The account is judged by its whole last interval: it lags while more of that is stale than its objective allows,
-- and more than one poll unless all are stale. Index: trackers_place, poll_done_due, account_freshness_pkey, account_lags_pkey.
WITH slot AS (
  UPDATE tickwright.poll_wheels SET judged_until = $2
   WHERE interval_minutes = $3 AND judged_until < $2 RETURNING $1::integer AS slot_id, $2::timestamptz AS due_at
), done AS MATERIALIZED (
  SELECT u.id, min(date_part('epoch', d.done_at - d.due_at)) AS took_s
    FROM slot
    JOIN tickwright.poll_done d ON d.slot_id = slot.slot_id AND d.due_at >= slot.due_at AND d.due_at < slot.due_at + interval '1 minute'
   CROSS JOIN LATERAL unnest(d.ids) AS u (id) GROUP BY u.id
), judged AS MATERIALIZED (
  SELECT t.account_no, t.id, done.took_s, slot.due_at + t.place % 60 * interval '1 second' AS due_at,
         greatest(t.created_at, t.placed_at, t.last_polled_at) AS seen_at
    FROM slot
    JOIN tickwright.trackers t ON t.place BETWEEN slot.slot_id * 60 AND slot.slot_id * 60 + 59
    LEFT JOIN done ON done.id = t.id
   WHERE {wanted}
     AND t.account_no NOT IN (SELECT c.account_no FROM tickwright.polling_schedule_config c
                               WHERE c.promised_since >= $2 - interval '1 minute')
     AND t.partner_no NOT IN (SELECT p.partner_no FROM tickwright.partners p
                               WHERE p.promised_since >= $2 - interval '1 minute' OR tickwright.quiet_at(p.settings, $2)
                                  OR tickwright.quiet_at(p.settings, $2 + $3 * interval '6 seconds'))
     AND (done.id IS NOT NULL
          OR (greatest(t.created_at, t.placed_at) < $2 - make_interval(mins => $3)
              AND (t.last_polled_at IS NULL
                   OR t.last_polled_at < $2 + t.place % 60 * interval '1 second' - $3 * interval '54 seconds')))
), earlier AS MATERIALIZED (
  SELECT u.id, max(d.done_at) AS done_at
    FROM slot JOIN tickwright.poll_done d ON d.slot_id = slot.slot_id AND d.due_at < slot.due_at
   CROSS JOIN LATERAL unnest(d.ids) AS u (id)
   WHERE EXISTS (SELECT FROM judged WHERE took_s IS NULL) GROUP BY u.id
), counted AS MATERIALIZED (
  SELECT j.account_no, count(*) AS polls, count(*) FILTER (WHERE j.took_s <= 6 * $3) AS fresh,
         max(CASE WHEN j.took_s IS NOT NULL THEN 1 + j.took_s / (60.0 * $3)
                  ELSE 0.1 + date_part('epoch', j.due_at - greatest(j.seen_at, earlier.done_at)) / (60.0 * $3) END) AS lag
    FROM judged j LEFT JOIN earlier ON earlier.id = j.id AND j.took_s IS NULL GROUP BY j.account_no
), sliced AS (
  INSERT INTO tickwright.account_freshness AS f (account_no, minutes, from_at, keep_until, polls, fresh, lag)
  SELECT account_no, 5, date_bin('5 minutes', $2, 'epoch'), $2 + greatest(interval '2 hours' + make_interval(mins => $3), interval '390 minutes'), polls, fresh, lag
    FROM counted ORDER BY account_no
      ON CONFLICT (account_no, minutes, from_at) DO UPDATE
         SET polls = f.polls + excluded.polls, fresh = f.fresh + excluded.fresh, lag = greatest(f.lag, excluded.lag)
), whole AS (
  SELECT c.account_no, c.polls + before.polls AS polls, c.fresh + before.fresh AS fresh, greatest(c.lag, before.lag) AS lag,
         (c.polls + before.polls) * (1 - a.freshness_objective) AS allowed
    FROM counted c
    JOIN tickwright.polling_schedule_config a ON a.account_no = c.account_no
   CROSS JOIN LATERAL (
     SELECT coalesce(sum(f.polls), 0) AS polls, coalesce(sum(f.fresh), 0) AS fresh, max(f.lag) AS lag
       FROM tickwright.account_freshness f
      WHERE f.account_no = c.account_no AND f.minutes = 5 AND f.from_at > $2 - make_interval(mins => $3 + 5)) AS before
)
INSERT INTO tickwright.account_lags AS l (account_no, interval_minutes, due_at, polls, fresh, lag, stale_since)
SELECT account_no, $3, $2, polls, fresh, lag,
       CASE WHEN polls - fresh > greatest(allowed, CASE WHEN fresh > 0 THEN 1 ELSE 0 END) THEN $2::timestamptz END
  FROM whole ORDER BY account_no
    ON CONFLICT (account_no) DO UPDATE
   SET interval_minutes = excluded.interval_minutes, due_at = excluded.due_at, polls = excluded.polls, fresh = excluded.fresh,
       lag = excluded.lag, stale_since = CASE WHEN excluded.stale_since IS NOT NULL THEN coalesce(l.stale_since, excluded.stale_since) END
 WHERE excluded.due_at > l.due_at;

-- name: fold
-- Add slices that are older than their time to keep to their days, at most $1. Index: account_freshness_keep, account_freshness_pkey.
WITH old AS (
  DELETE FROM tickwright.account_freshness
   WHERE (account_no, minutes, from_at) IN (
     SELECT account_no, minutes, from_at FROM tickwright.account_freshness
      WHERE minutes = 5 AND keep_until < clock_timestamp() ORDER BY keep_until LIMIT $1)
  RETURNING account_no, from_at, polls, fresh, lag
), days AS (
  INSERT INTO tickwright.account_freshness AS f (account_no, minutes, from_at, keep_until, polls, fresh, lag)
  SELECT account_no, 1440, day.at, day.at + interval '31 days', sum(polls), sum(fresh), max(lag)
    FROM old CROSS JOIN LATERAL (SELECT date_bin('1 day', from_at, 'epoch') AS at) AS day GROUP BY account_no, day.at ORDER BY 1, 3
      ON CONFLICT (account_no, minutes, from_at) DO UPDATE
         SET polls = f.polls + excluded.polls, fresh = f.fresh + excluded.fresh, lag = greatest(f.lag, excluded.lag)
)
SELECT count(*) FROM old;

-- name: forget
-- Delete days that are a month old, at most $1. Index: account_freshness_keep.
DELETE FROM tickwright.account_freshness
 WHERE (account_no, minutes, from_at) IN (
   SELECT account_no, minutes, from_at FROM tickwright.account_freshness
    WHERE minutes = 1440 AND keep_until < clock_timestamp() ORDER BY keep_until LIMIT $1);

-- name: forget_caps
-- Delete the counts of caps of slices that began an hour ago. Index: poll_cap_slices_pkey.
DELETE FROM tickwright.poll_cap_slices WHERE slice_at < clock_timestamp() - interval '1 hour';

-- name: show
-- The freshness of an account: its last interval, and the last month. Index: account_lags_pkey, account_freshness_pkey.
SELECT c.freshness_objective AS objective, l.due_at AS judged_until, l.lag AS lag_ratio, l.stale_since,
       coalesce(l.polls, 0) AS recent_polls, coalesce(l.fresh, 0) AS recent_fresh, f.*
  FROM tickwright.polling_schedule_config c
  LEFT JOIN tickwright.judged_accounts l ON l.account_no = c.account_no
 CROSS JOIN LATERAL (
   SELECT coalesce(sum(polls), 0)::bigint AS polls, coalesce(sum(fresh), 0)::bigint AS fresh
     FROM tickwright.account_freshness f WHERE f.account_no = c.account_no) AS f
 WHERE c.account_no = $1;

-- name: budgets
-- The freshness of each of the accounts $1: its last interval, the last month, and the last judged hour.
-- Index: polling_schedule_config_pkey, account_lags_pkey, account_freshness_pkey.
SELECT c.account_id, c.freshness_objective AS objective, coalesce(l.polls, 0) AS recent_polls, coalesce(l.fresh, 0) AS recent_fresh, f.*
  FROM tickwright.polling_schedule_config c
  LEFT JOIN tickwright.judged_accounts l ON l.account_no = c.account_no
 CROSS JOIN LATERAL (
   SELECT coalesce(sum(f.polls), 0)::bigint AS polls, coalesce(sum(f.fresh), 0)::bigint AS fresh,
          coalesce(sum(f.polls) FILTER (WHERE f.minutes = 5 AND f.from_at >= hour.begins), 0)::bigint AS hour_polls,
          coalesce(sum(f.fresh) FILTER (WHERE f.minutes = 5 AND f.from_at >= hour.begins), 0)::bigint AS hour_fresh
     FROM (SELECT date_bin('5 minutes', l.due_at - interval '1 hour', 'epoch') AS begins) AS hour
     JOIN tickwright.account_freshness f ON f.account_no = c.account_no) AS f
 WHERE c.account_id = ANY ($1::text[]);

-- name: burn
-- Judged polls of an account since each of the instants $2, in their order: whole slices, or whole days where they are folded.
-- Index: account_freshness_pkey.
SELECT coalesce(sum(f.polls), 0)::bigint AS polls, coalesce(sum(f.fresh), 0)::bigint AS fresh
  FROM unnest($2::timestamptz[]) WITH ORDINALITY AS u (from_at, n)
  LEFT JOIN tickwright.account_freshness f ON f.account_no = $1 AND f.minutes IN (5, 1440) AND f.from_at >= u.from_at
 GROUP BY u.n ORDER BY u.n;

-- name: series
-- The freshness of an account: slices since $2, then days, the oldest first; at most $3 rows. Index: account_freshness_pkey.
SELECT from_at, minutes, polls, fresh, lag FROM tickwright.account_freshness
 WHERE account_no = $1 AND minutes IN (5, 1440) AND from_at >= $2 ORDER BY minutes DESC, from_at LIMIT $3;
