-- name: counted
-- The placed trackers of the account $1 by partner, of its first $2. Index: trackers_account, partners_partner_no_key.
SELECT p.name AS partner, count(*)::float8 AS trackers
  FROM (SELECT t.partner_no FROM tickwright.trackers t WHERE t.account_no = $1 AND t.place IS NOT NULL LIMIT $2) AS t
  JOIN tickwright.partners p ON p.partner_no = t.partner_no GROUP BY p.name ORDER BY p.name;

-- name: sampled
-- The same for an account with many, from $2 pages of the table at random. No index: so many pages are read.
SELECT p.name AS partner, t.trackers * (SELECT greatest(1, c.relpages / $2::float8) FROM pg_class c WHERE c.oid = 'tickwright.trackers'::regclass) AS trackers
  FROM (SELECT s.partner_no, count(*) AS trackers
          FROM tickwright.trackers s TABLESAMPLE SYSTEM (
                 (SELECT least(100, 100 * $2::float8 / greatest(1, c.relpages)) FROM pg_class c WHERE c.oid = 'tickwright.trackers'::regclass))
         WHERE s.account_no = $1 AND s.place IS NOT NULL GROUP BY s.partner_no) AS t
  JOIN tickwright.partners p ON p.partner_no = t.partner_no ORDER BY p.name;

-- name: coming
-- What the wheels bring in the twelve whole slices of five minutes that come next, per partner, as each slot's last turn counted it.
-- Small: a row per slot that comes round; index: poll_slices_pkey.
WITH span AS MATERIALIZED (
  SELECT date_bin('5 minutes', clock_timestamp(), 'epoch') + interval '5 minutes' AS from_at
), turn AS (
  SELECT s.slot_id, s.prev_due_at, due.at
    FROM span CROSS JOIN tickwright.poll_slots s
   CROSS JOIN LATERAL generate_series(s.next_due_at, span.from_at + interval '59 minutes', make_interval(mins => s.interval_minutes)) AS due (at)
   WHERE s.next_due_at < span.from_at + interval '1 hour' AND due.at >= span.from_at
)
SELECT p.name AS partner, date_bin('5 minutes', turn.at, 'epoch') AS slice_at,
       sum(greatest(0, (SELECT coalesce(sum(load), 0) FROM unnest(l.loads) AS load) - l.skipped))::bigint AS polls
  FROM turn
  JOIN tickwright.poll_slices l ON l.due_at = turn.prev_due_at AND l.slot_id = turn.slot_id AND NOT l.coalesced
  JOIN tickwright.partners p ON p.partner_no = l.partner_no
 GROUP BY 1, 2;

-- name: limits
-- The settings of every partner. Small: a row per partner.
SELECT name, settings::text AS settings FROM tickwright.partners ORDER BY name LIMIT 10000;
