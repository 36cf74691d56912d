-- name: prepare
-- Facts about groups before their polls are made: the interval, the polls that are done already (the inbox), and the trackers that
-- are no longer polled or differ from the poll, which is then not from a relay. Group $1[i] is of slot $2[i], second $3[i], partner
-- $4[i]; tracker $6[j] with the external id $7[j] belongs to group $5[j]. Index: poll_slots_pkey, poll_done_due, trackers_pkey.
WITH poll_group AS MATERIALIZED (
  SELECT * FROM unnest($1::integer[], $2::integer[], $3::timestamptz[], $4::smallint[]) AS t (n, slot_id, due_at, partner_no)
), poll AS MATERIALIZED (
  SELECT * FROM unnest($5::integer[], $6::bigint[], $7::text[]) AS p (n, id, external_id)
), not_polled AS (
  SELECT p.n, array_agg(p.id) AS ids
    FROM poll p JOIN poll_group g USING (n) LEFT JOIN tickwright.trackers k ON k.id = p.id
   WHERE k.id IS NULL OR k.ended_at IS NOT NULL OR k.tracking_until <= now()
      OR k.external_id <> p.external_id OR k.partner_no <> g.partner_no
   GROUP BY p.n
)
SELECT g.n, s.interval_minutes, date_part('epoch', clock_timestamp()) AS now_s, coalesce(not_polled.ids, '{}') AS not_polled,
       ARRAY (SELECT unnest(d.ids) FROM tickwright.poll_done d
               WHERE d.slot_id = g.slot_id AND d.due_at = g.due_at AND d.partner_no = g.partner_no) AS done
  FROM poll_group g LEFT JOIN tickwright.poll_slots s USING (slot_id) LEFT JOIN not_polled USING (n);

-- name: not_polled
-- Those of the trackers $1, whose polls wait in a consumer, that are no longer polled. Index: trackers_pkey.
SELECT u.id FROM unnest($1::bigint[]) AS u (id) LEFT JOIN tickwright.trackers k ON k.id = u.id
 WHERE k.id IS NULL OR k.ended_at IS NOT NULL OR k.tracking_until <= now();

-- name: lock_slices
-- Lock the slice ledger's rows of the given slots, seconds and partners until the end of the transaction; write_results changes them.
-- So only one transaction writes results of one minute, slot and partner, and two deliveries of one poll cannot both find it undone.
-- All transactions lock in the same order. Index: poll_slices_pkey.
SELECT FROM tickwright.poll_slices AS l
 WHERE (l.due_at, l.slot_id, l.partner_no) IN (
   SELECT date_trunc('minute', u.due_at, 'UTC'), u.slot_id, u.partner_no
     FROM unnest($1::integer[], $2::timestamptz[], $3::smallint[]) AS u (slot_id, due_at, partner_no))
 ORDER BY l.due_at, l.slot_id, l.partner_no FOR NO KEY UPDATE;

-- name: write_results
-- Write answers. New ones go to the ledger, which is also the inbox. Events go to the tracker, which keeps its last ten, and, one row
-- per tracker, to the outbox with destination $15. The slice ledger counts.
-- Group $1[i] is of slot $2[i], second $3[i], partner $4[i], interval $5[i]. Answer j of group $6[j] is of tracker $7[j], each tracker
-- once: status $8[j] since $9[j], newest event at $10[j], its events as JSON, none twice and the latest last: $11[j] those before the
-- last ten, $12[j] the last ten, $13[j] their mark; $14[j] whether it ends the tracker.
-- An answer that changes a row that another transaction locks, or has changed since this statement began, changes nothing, the ledger
-- included; its tracker is returned as locked. It is written later, and no other answer waits for it.
-- An event is new, whatever the status and its instant, if the tracker does not keep it and it sorts after the first of the ten that
-- it keeps. So an event that was published and is no longer kept is never new again. Events sort by instant, then by text as bytes.
-- An answer with the mark that the tracker has contains nothing new; the mark is NULL while an event is ahead of the clock.
-- A status's instant ahead of the clock counts as none, and an event ahead of it is published when its time has come: neither hides
-- later events. Of two statuses of one instant the last answer counts; a terminal one counts whatever its instant.
-- Runs in a transaction that has held the groups and called lock_slices. Index: poll_done_due, trackers_pkey, poll_slices_pkey.
WITH poll_group AS MATERIALIZED (
  SELECT * FROM unnest($1::integer[], $2::integer[], $3::timestamptz[], $4::smallint[], $5::integer[])
    AS t (n, slot_id, due_at, partner_no, interval_minutes)
), answer AS MATERIALIZED (
  SELECT a.n, a.id, a.status, CASE WHEN a.at <= statement_timestamp() THEN a.at END AS at,
         CASE WHEN a.newest_at IS NULL OR a.newest_at <= statement_timestamp() THEN a.newest_at
              ELSE (SELECT max((e ->> 'at')::timestamptz) FROM jsonb_array_elements(a.last_events::jsonb) AS e
                     WHERE (e ->> 'at')::timestamptz <= statement_timestamp()) END AS newest_at,
         CASE WHEN a.newest_at <= statement_timestamp() THEN a.mark END AS mark, a.first_events, a.last_events, a.terminal
    FROM unnest($6::integer[], $7::bigint[], $8::text[], $9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[], $13::bigint[], $14::boolean[])
    AS a (n, id, status, at, newest_at, first_events, last_events, mark, terminal)
), done AS MATERIALIZED (
  SELECT DISTINCT g.n, x.id
    FROM poll_group g JOIN tickwright.poll_done d ON d.slot_id = g.slot_id AND d.due_at = g.due_at AND d.partner_no = g.partner_no
   CROSS JOIN LATERAL unnest(d.ids) AS x (id)
), fresh AS MATERIALIZED (
  SELECT a.* FROM answer a WHERE NOT EXISTS (SELECT FROM done WHERE done.n = a.n AND done.id = a.id)
), judged AS MATERIALIZED (
  SELECT k.id, k.xmin AS version, k.status AS old_status, k.account_no, k.partner_no, k.external_id, g.due_at, f.newest_at,
         f.status, f.at, f.terminal, k.status_at AS old_at, f.mark, new.events
    FROM fresh f JOIN poll_group g USING (n) JOIN tickwright.trackers k ON k.id = f.id
   CROSS JOIN LATERAL (
     SELECT CASE WHEN f.last_events <> '[]' AND (k.told_mark = f.mark) IS NOT TRUE AND k.events IS DISTINCT FROM f.last_events::jsonb THEN (
       SELECT jsonb_agg(s.e ORDER BY s.at, s.text)
         FROM (SELECT e, (e ->> 'at')::timestamptz AS at, (e ->> 'text') COLLATE "C" AS text
                 FROM (SELECT jsonb_array_elements(f.first_events::jsonb || f.last_events::jsonb) AS e
                       EXCEPT SELECT jsonb_array_elements(k.events)) AS unknown) AS s
        WHERE s.at <= statement_timestamp()
          AND (coalesce(jsonb_array_length(k.events), 0) < 10
               OR (s.at, s.text) > ((k.events -> 0 ->> 'at')::timestamptz, (k.events -> 0 ->> 'text') COLLATE "C"))) END AS events) AS new
   WHERE k.ended_at IS NULL
     AND ((f.status <> k.status AND (f.at IS NULL OR k.status_at IS NULL OR f.at >= k.status_at))
          OR new.events IS NOT NULL OR f.terminal)
), changed AS MATERIALIZED (
  SELECT j.* FROM judged j JOIN tickwright.trackers k ON k.id = j.id WHERE k.xmin = j.version FOR NO KEY UPDATE OF k SKIP LOCKED
), locked AS MATERIALIZED (
  SELECT id FROM judged EXCEPT SELECT id FROM changed
), written AS MATERIALIZED (
  SELECT f.n, f.id FROM fresh f WHERE NOT EXISTS (SELECT FROM locked WHERE locked.id = f.id)
), done_polls AS (
  INSERT INTO tickwright.poll_done (slot_id, due_at, partner_no, done_at, ids)
  SELECT g.slot_id, g.due_at, g.partner_no, clock_timestamp(), array_agg(w.id ORDER BY w.id)
    FROM written w JOIN poll_group g USING (n) GROUP BY g.slot_id, g.due_at, g.partner_no
), counted AS (
  SELECT date_trunc('minute', g.due_at) AS due_at, g.slot_id, g.partner_no, coalesce(sum(c.polled), 0) AS polled,
         coalesce(sum(c.polled) FILTER (WHERE clock_timestamp() > g.due_at + g.interval_minutes * interval '6 seconds'), 0) AS late
    FROM poll_group g LEFT JOIN (SELECT n, count(*) AS polled FROM written GROUP BY n) AS c USING (n)
   GROUP BY 1, 2, 3
), slices AS (
  UPDATE tickwright.poll_slices s
     SET polled = s.polled + c.polled, late = s.late + c.late
    FROM counted c WHERE s.due_at = c.due_at AND s.slot_id = c.slot_id AND s.partner_no = c.partner_no
), updated AS (
  UPDATE tickwright.trackers k
     SET status = CASE WHEN n.status IS NOT NULL AND (n.terminal OR n.at IS NULL OR n.old_at IS NULL OR n.at >= n.old_at) THEN n.status ELSE k.status END,
         status_at = greatest(k.status_at, n.newest_at, coalesce(n.at, CASE WHEN n.newest_at IS NULL THEN clock_timestamp() END)),
         last_polled_at = clock_timestamp(),
         events = CASE WHEN n.events IS NULL THEN k.events ELSE (
           SELECT jsonb_agg(last.e ORDER BY last.at, last.text)
             FROM (SELECT e, (e ->> 'at')::timestamptz AS at, (e ->> 'text') COLLATE "C" AS text
                     FROM jsonb_array_elements(coalesce(k.events, '[]') || n.events) AS e
                    ORDER BY at DESC, text DESC LIMIT 10) AS last) END,
         told_mark = coalesce(n.mark, k.told_mark),
         ended_at = CASE WHEN n.terminal THEN clock_timestamp() END,
         ended_by = CASE WHEN n.terminal THEN 'terminal' END,
         place = CASE WHEN n.terminal THEN NULL ELSE k.place END
    FROM changed n WHERE k.id = n.id
  RETURNING k.id, k.status, k.status_at, k.ended_at
), published AS (
  INSERT INTO tickwright.outbox (destination, key, payload)
  SELECT $15, n.id::text, jsonb_build_object(
           'version', 1,
           'event', CASE WHEN k.ended_at IS NOT NULL THEN 'ended' WHEN k.status <> n.old_status THEN 'status' ELSE 'events' END,
           'reason', CASE WHEN k.ended_at IS NOT NULL THEN 'terminal' ELSE 'poll' END,
           'tracker_id', n.id, 'account_id', c.account_id, 'partner', p.name, 'external_id', n.external_id,
           'status', k.status, 'previous_status', n.old_status, 'at', k.status_at, 'due_at', n.due_at,
           'event_id', 'poll_' || n.id || '_' || date_part('epoch', n.due_at)::bigint,
           'events', coalesce(n.events, '[]'))
    FROM changed n JOIN updated k USING (id)
    JOIN tickwright.polling_schedule_config c ON c.account_no = n.account_no
    JOIN tickwright.partners p ON p.partner_no = n.partner_no
   ORDER BY n.id
  RETURNING 1
)
SELECT (SELECT count(*) FROM written) AS polled, (SELECT count(*) FROM published) AS events,
       (SELECT coalesce(sum(late), 0)::bigint FROM counted) AS late, ARRAY (SELECT id FROM locked) AS locked;

-- name: count_dropped
-- Count $4[i] polls of slot $1[i], second $2[i] and partner $3[i] that will not be made. Runs after write_results, in its transaction.
-- Index: poll_slices_pkey.
UPDATE tickwright.poll_slices s
   SET superseded = greatest(s.superseded, least(s.superseded + c.dropped, s.selected - s.polled))
  FROM (SELECT date_trunc('minute', u.due_at, 'UTC') AS due_at, u.slot_id, u.partner_no, sum(u.dropped) AS dropped
          FROM unnest($1::integer[], $2::timestamptz[], $3::smallint[], $4::integer[]) AS u (slot_id, due_at, partner_no, dropped)
         GROUP BY 1, 2, 3) AS c
 WHERE s.due_at = c.due_at AND s.slot_id = c.slot_id AND s.partner_no = c.partner_no;
