-- name: prepare
-- What is to be known before turns are carried out: their interval, which of their polls are done already (the inbox),
-- and which trackers are polled no more, or are not what the poll says: then its topic was written by a stranger.
-- Turn $1[i] is of slot $2[i], second $3[i], partner $4[i]; tracker $6[j], which the partner calls $7[j], belongs to
-- turn $5[j]. Index: poll_slots_pkey, poll_done_due, trackers_pkey.
WITH turn AS MATERIALIZED (
  SELECT * FROM unnest($1::integer[], $2::integer[], $3::timestamptz[], $4::smallint[]) AS t (n, slot_id, due_at, partner_no)
), poll AS MATERIALIZED (
  SELECT * FROM unnest($5::integer[], $6::bigint[], $7::text[]) AS p (n, id, external_id)
), over AS (
  SELECT p.n, array_agg(p.id) AS ids
    FROM poll p JOIN turn t USING (n) LEFT JOIN tickwright.trackers k ON k.id = p.id
   WHERE k.id IS NULL OR k.ended_at IS NOT NULL OR k.tracking_until <= now()
      OR k.external_id <> p.external_id OR k.partner_no <> t.partner_no
   GROUP BY p.n
)
SELECT t.n, s.interval_minutes, date_part('epoch', clock_timestamp()) AS now_s, coalesce(over.ids, '{}') AS over,
       ARRAY (SELECT unnest(d.ids) FROM tickwright.poll_done d
               WHERE d.slot_id = t.slot_id AND d.due_at = t.due_at AND d.partner_no = t.partner_no) AS done
  FROM turn t LEFT JOIN tickwright.poll_slots s USING (slot_id) LEFT JOIN over USING (n);

-- name: over
-- Which of the trackers $1, whose polls wait in a consumer, are polled no more. Index: trackers_pkey.
SELECT u.id FROM unnest($1::bigint[]) AS u (id) LEFT JOIN tickwright.trackers k ON k.id = u.id
 WHERE k.id IS NULL OR k.ended_at IS NOT NULL OR k.tracking_until <= now();

-- name: account_names
-- Names of accounts by their numbers. Index: polling_schedule_config_account_no_key.
SELECT account_no, account_id FROM tickwright.polling_schedule_config WHERE account_no = ANY ($1::integer[]);

-- name: lock_turns
-- Whoever writes effects of one minute, slot and partner does so alone, in an order that all keep: so two deliveries of
-- one poll cannot both find it undone. Held until the end of the transaction: by its row of the slice ledger, which write_results changes.
-- Index: poll_slices_pkey.
SELECT FROM tickwright.poll_slices AS l
 WHERE (l.due_at, l.slot_id, l.partner_no) IN (
   SELECT date_trunc('minute', u.due_at, 'UTC'), u.slot_id, u.partner_no
     FROM unnest($1::integer[], $2::timestamptz[], $3::smallint[]) AS u (slot_id, due_at, partner_no))
 ORDER BY l.due_at, l.slot_id, l.partner_no FOR NO KEY UPDATE;

-- name: write_results
-- The effect of answers: what is new of it goes to the ledger, which is also the inbox; news go to the
-- tracker, with its last ten events, and, one row per tracker, to the outbox; the slice ledger counts. Turn $1[i] is of slot $2[i], second $3[i],
-- partner $4[i], interval $5[i]. Answer j of turn $6[j] is of tracker $7[j], each tracker once: status
-- $8[j] since $9[j], its newest event at $10[j], its events as JSON, none twice and the latest last, those before the last ten $11[j] and the last ten
-- $12[j] with their mark $13[j], and whether it ends the tracker, $14[j].
-- An answer changes nothing, the ledger included, and its tracker is returned as locked, where it has news for a row that another transaction
-- locks or has changed since this statement began: it is written later, and no other answer waits for it.
-- An event is new, whatever the status and its instant, if the tracker does not keep it, and comes behind the first of the ten that it keeps: so none
-- that was told and is kept no more is new again. The order is that of instants, then of texts as bytes. An answer whose last ten were
-- judged before has nothing new, which the mark tells, unless one of them is ahead of the clock.
-- A status's instant that is ahead of the clock is none, and an event from there is told when its time has come: neither hides
-- later news. Of two statuses of one instant the last answer counts; a terminal one counts whatever its instant.
-- News go to the destination $15. In a transaction that holds the turns and has locked them.
-- Index: poll_done_due, trackers_pkey, poll_slices_pkey.
WITH turn AS MATERIALIZED (
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
  SELECT DISTINCT t.n, x.id
    FROM turn t JOIN tickwright.poll_done d ON d.slot_id = t.slot_id AND d.due_at = t.due_at AND d.partner_no = t.partner_no
   CROSS JOIN LATERAL unnest(d.ids) AS x (id)
), fresh AS MATERIALIZED (
  SELECT a.* FROM answer a WHERE NOT EXISTS (SELECT FROM done WHERE done.n = a.n AND done.id = a.id)
), judged AS MATERIALIZED (
  SELECT k.id, k.xmin AS version, k.status AS old_status, k.account_no, k.partner_no, k.external_id, t.due_at, f.newest_at,
         f.status, f.at, f.terminal, k.status_at AS old_at, f.mark, new.events
    FROM fresh f JOIN turn t USING (n) JOIN tickwright.trackers k ON k.id = f.id
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
), news AS MATERIALIZED (
  SELECT j.* FROM judged j JOIN tickwright.trackers k ON k.id = j.id WHERE k.xmin = j.version FOR NO KEY UPDATE OF k SKIP LOCKED
), locked AS MATERIALIZED (
  SELECT id FROM judged EXCEPT SELECT id FROM news
), written AS MATERIALIZED (
  SELECT f.n, f.id FROM fresh f WHERE NOT EXISTS (SELECT FROM locked WHERE locked.id = f.id)
), ledger AS (
  INSERT INTO tickwright.poll_done (slot_id, due_at, partner_no, done_at, ids)
  SELECT t.slot_id, t.due_at, t.partner_no, clock_timestamp(), array_agg(w.id ORDER BY w.id)
    FROM written w JOIN turn t USING (n) GROUP BY t.slot_id, t.due_at, t.partner_no
), counted AS (
  SELECT date_trunc('minute', t.due_at) AS due_at, t.slot_id, t.partner_no, coalesce(sum(c.polled), 0) AS polled,
         coalesce(sum(c.polled) FILTER (WHERE clock_timestamp() > t.due_at + t.interval_minutes * interval '6 seconds'), 0) AS late
    FROM turn t LEFT JOIN (SELECT n, count(*) AS polled FROM written GROUP BY n) AS c USING (n)
   GROUP BY 1, 2, 3
), slices AS (
  UPDATE tickwright.poll_slices s
     SET polled = s.polled + c.polled, late = s.late + c.late
    FROM counted c WHERE s.due_at = c.due_at AND s.slot_id = c.slot_id AND s.partner_no = c.partner_no
), told AS (
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
    FROM news n WHERE k.id = n.id
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
    FROM news n JOIN told k USING (id)
    JOIN tickwright.polling_schedule_config c ON c.account_no = n.account_no
    JOIN tickwright.partners p ON p.partner_no = n.partner_no
   ORDER BY n.id
  RETURNING 1
)
SELECT (SELECT count(*) FROM written) AS polled, (SELECT count(*) FROM published) AS news,
       (SELECT coalesce(sum(late), 0)::bigint FROM counted) AS late, ARRAY (SELECT id FROM locked) AS locked;

-- name: count_dropped
-- $4[i] polls of the minute, slot and partner of turn i ($1[i] its slot, $2[i] its second, $3[i] its partner) will not be carried out. Behind
-- write_results, in its transaction. Index: poll_slices_pkey.
UPDATE tickwright.poll_slices s
   SET superseded = greatest(s.superseded, least(s.superseded + c.dropped, s.selected - s.polled))
  FROM (SELECT date_trunc('minute', u.due_at, 'UTC') AS due_at, u.slot_id, u.partner_no, sum(u.dropped) AS dropped
          FROM unnest($1::integer[], $2::timestamptz[], $3::smallint[], $4::integer[]) AS u (slot_id, due_at, partner_no, dropped)
         GROUP BY 1, 2, 3) AS c
 WHERE s.due_at = c.due_at AND s.slot_id = c.slot_id AND s.partner_no = c.partner_no;
