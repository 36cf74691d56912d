-- name: wanted
-- Whether a selection of a slot includes its tracker t: it is still tracked, not postponed by an event, and nothing of it is paused.
t.tracking_until > slot.due_at + (t.place - slot.slot_id * 60) * interval '1 second'
         AND (t.skip_until IS NULL OR t.skip_until <= slot.due_at + (t.place - slot.slot_id * 60) * interval '1 second')
         AND t.account_no NOT IN (SELECT c.account_no FROM tickwright.polling_schedule_config c WHERE c.paused_at IS NOT NULL)
         AND t.partner_no NOT IN (SELECT p.partner_no FROM tickwright.partners p WHERE p.paused_at IS NOT NULL)

-- name: selection
-- What a selection does with the slot that it advanced. $2 is the minute over which polls are released, $3 the most trackers in an
-- outbox row, $4 the number of relays that share the partners.
-- An account with a cap has at most that many polls in the five minutes of the release. If its trackers in the five slots of that
-- slice are more, each slot has its share of the cap. Remainders rotate over the slots, and a slot continues after the last tracker
-- that it polled. OFFSET 0 makes PostgreSQL decide once whether a tracker is taken, without storing the decision.
capped AS MATERIALIZED (
  SELECT account_no, polls_per_slice_max AS cap FROM tickwright.polling_schedule_config WHERE polls_per_slice_max IS NOT NULL
), line AS MATERIALIZED (
  SELECT t.id, t.place, t.account_no, capped.cap, count(*) OVER (PARTITION BY t.account_no) AS wanted,
         row_number() OVER (PARTITION BY t.account_no
                            ORDER BY (t.place, t.id) <= (mark.after_place, mark.after_id), t.place, t.id) AS nth
    FROM slot
    JOIN tickwright.trackers t ON t.place BETWEEN slot.slot_id * 60 AND slot.slot_id * 60 + 59
    JOIN capped ON capped.account_no = t.account_no
    LEFT JOIN tickwright.poll_caps mark ON mark.slot_id = slot.slot_id AND mark.account_no = t.account_no
   WHERE {wanted} AND EXISTS (SELECT FROM capped)
), minute AS (
  SELECT slot.slot_id, w.first_slot_id, w.interval_minutes, date_part('epoch', slot.due_at)::bigint / 60 AS n
    FROM slot JOIN tickwright.poll_wheels w ON w.interval_minutes = slot.interval_minutes WHERE EXISTS (SELECT FROM capped)
), beside AS MATERIALIZED (
  SELECT mark.account_no, sum(mark.wanted) AS others, coalesce(sum(mark.wanted) FILTER (WHERE step < 0), 0) AS before
    FROM minute CROSS JOIN LATERAL generate_series(- (minute.n % 5), 4 - minute.n % 5) AS step
    JOIN tickwright.poll_caps mark ON mark.slot_id = minute.first_slot_id + ((minute.n + step) % minute.interval_minutes)::integer
   WHERE step <> 0 GROUP BY mark.account_no
), share AS MATERIALIZED (
  SELECT account.account_no, account.wanted,
         greatest(0, least(account.cap - coalesce(spent.polls, 0),
                           CASE WHEN slice.total <= account.cap THEN account.wanted
                                ELSE (account.cap * (slice.before + account.wanted) + slice.odd) / slice.total
                                     - (account.cap * slice.before + slice.odd) / slice.total END))::bigint AS polls
    FROM (SELECT DISTINCT account_no, cap, wanted FROM line) AS account CROSS JOIN minute
    LEFT JOIN beside ON beside.account_no = account.account_no
    LEFT JOIN tickwright.poll_cap_slices spent
      ON spent.slice_at = date_bin('5 minutes', $2, 'epoch') AND spent.account_no = account.account_no
   CROSS JOIN LATERAL (
     SELECT total, coalesce(beside.before, 0)::bigint AS before, -- the remainder steps by the golden ratio each time
            minute.n / greatest(minute.interval_minutes, 5) * 2654435769 % 4294967296 * total / 4294967296 AS odd
       FROM (SELECT (coalesce(beside.others, 0) + account.wanted)::bigint AS total) AS slots) AS slice
), deferred AS MATERIALIZED (
  SELECT line.id FROM line JOIN share USING (account_no) WHERE line.nth > share.polls
), marked AS (
  INSERT INTO tickwright.poll_caps AS m (slot_id, account_no, wanted, after_place, after_id)
  SELECT slot.slot_id, share.account_no, share.wanted, last.place, last.id
    FROM slot CROSS JOIN share
    LEFT JOIN line last ON last.account_no = share.account_no AND last.nth = share.polls AND share.polls < share.wanted
      ON CONFLICT (slot_id, account_no) DO UPDATE
         SET wanted = excluded.wanted, after_place = coalesce(excluded.after_place, m.after_place),
             after_id = coalesce(excluded.after_id, m.after_id)
       WHERE excluded.after_id IS NOT NULL OR excluded.wanted <> m.wanted
), unmarked AS (
  UPDATE tickwright.poll_caps m SET wanted = 0 FROM slot
   WHERE m.slot_id = slot.slot_id AND m.wanted > 0 AND m.account_no NOT IN (SELECT account_no FROM share)
), spent AS (
  INSERT INTO tickwright.poll_cap_slices AS s (slice_at, account_no, polls)
  SELECT date_bin('5 minutes', $2, 'epoch'), account_no, least(polls, wanted) FROM share WHERE polls > 0
      ON CONFLICT (slice_at, account_no) DO UPDATE SET polls = s.polls + excluded.polls
), due AS (
  SELECT at.second, t.partner_no, t.id, t.account_no, t.external_id, deferred.id IS NOT NULL AS deferred,
         deferred.id IS NULL AND {wanted} AS taken
    FROM slot
    JOIN tickwright.trackers t ON t.place BETWEEN slot.slot_id * 60 AND slot.slot_id * 60 + 59
    JOIN generate_series(0, 59) AS at (second) ON at.second = t.place % 60
    LEFT JOIN deferred ON deferred.id = t.id
  OFFSET 0
), second AS MATERIALIZED (
  SELECT second, partner_no, count(*) AS trackers, count(*) FILTER (WHERE deferred) AS deferred,
         coalesce(array_agg(id) FILTER (WHERE taken), '{}') AS ids,
         array_agg(account_no) FILTER (WHERE taken) AS account_nos,
         array_agg(external_id) FILTER (WHERE taken) AS external_ids
    FROM due GROUP BY second, partner_no
), put AS (
  INSERT INTO tickwright.scheduler_outbox (release_at, due_at, slot_id, partner_no, shard, ids, account_nos, external_ids)
  SELECT $2::timestamptz + second * interval '1 second', due_at + second * interval '1 second', slot_id, partner_no,
         partner_no % $4::integer, ids[k + 1 : k + $3], account_nos[k + 1 : k + $3], external_ids[k + 1 : k + $3]
    FROM slot CROSS JOIN second CROSS JOIN generate_series(0, cardinality(ids) - 1, $3::integer) AS k
)
INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected, skipped, deferred, loads)
SELECT due_at, slot_id, partner_no, interval_minutes, sum(cardinality(ids)), sum(trackers - cardinality(ids) - deferred), sum(deferred),
       ARRAY[coalesce(sum(trackers) FILTER (WHERE second < 10), 0),
             coalesce(sum(trackers) FILTER (WHERE second BETWEEN 10 AND 19), 0),
             coalesce(sum(trackers) FILTER (WHERE second BETWEEN 20 AND 29), 0),
             coalesce(sum(trackers) FILTER (WHERE second BETWEEN 30 AND 39), 0),
             coalesce(sum(trackers) FILTER (WHERE second BETWEEN 40 AND 49), 0),
             coalesce(sum(trackers) FILTER (WHERE second >= 50), 0)]
  FROM slot CROSS JOIN second GROUP BY due_at, slot_id, partner_no, interval_minutes
RETURNING slot_id, partner_no, selected, skipped;
