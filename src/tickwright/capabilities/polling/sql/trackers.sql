-- name: shown
-- The columns of a tracker that callers see.
v.id, v.account_id, v.partner, v.external_id, v.status, coalesce(t.status_at, i.status_at) AS status_at,
tickwright.shown_at(v.created_at) AS created_at, tickwright.shown_at(v.last_polled_at) AS last_polled_at, v.next_poll_at,
tickwright.shown_at(v.tracking_until) AS tracking_until, coalesce(t.skip_until, i.skip_until) AS skip_until, v.ended_at,
CASE WHEN v.ended_at IS NOT NULL THEN 'ended' WHEN i.id IS NOT NULL THEN 'waiting' ELSE 'placed' END AS state;

-- name: get
-- Trackers by their ids, newest first. Indexes: trackers_pkey, tracker_intake_pkey, poll_done_due.
SELECT {shown}
  FROM tickwright.shipment_polling_tracker v
  LEFT JOIN tickwright.trackers t ON t.id = v.id
  LEFT JOIN tickwright.tracker_intake i ON i.id = v.id
 WHERE v.id = ANY ($1::bigint[]) ORDER BY v.id DESC;

-- name: scan_events
-- The last scan events of a tracker, from its polls, newest last. Index: trackers_pkey.
SELECT (e.value ->> 'at')::timestamptz AS at, e.value ->> 'text' AS text
  FROM tickwright.trackers t CROSS JOIN LATERAL jsonb_array_elements(t.events) WITH ORDINALITY AS e (value, n)
 WHERE t.id = $1 ORDER BY e.n;

-- name: numbers
-- The numbers of an account and of a partner; NULL when unknown. Indexes: polling_schedule_config_pkey, partners_pkey.
SELECT (SELECT account_no FROM tickwright.polling_schedule_config WHERE account_id = $1) AS account_no,
       (SELECT partner_no FROM tickwright.partners WHERE name = $2) AS partner_no;

-- name: page
-- Ids below $1 that pass the filters, of the next $7 trackers, newest first; and whether no trackers are left. $5: the states to
-- return. Indexes: trackers_pkey and tracker_intake_pkey, read backwards.
WITH searched AS MATERIALIZED (
  SELECT id, account_no, partner_no, status, state FROM (
    (SELECT id, account_no, partner_no, status, CASE WHEN ended_at IS NULL THEN 'placed' ELSE 'ended' END AS state FROM tickwright.trackers
      WHERE id < $1 AND ($5::text[] IS NULL OR $5 && '{placed,ended}') ORDER BY id DESC LIMIT $7)
    UNION ALL
    (SELECT id, account_no, partner_no, status, 'waiting' FROM tickwright.tracker_intake
      WHERE id < $1 AND ($5 IS NULL OR 'waiting' = ANY ($5)) ORDER BY id DESC LIMIT $7)
  ) AS both_tables ORDER BY id DESC LIMIT $7
), fitting AS (
  SELECT id FROM searched
   WHERE ($2::integer IS NULL OR account_no = $2) AND ($3::smallint IS NULL OR partner_no = $3)
     AND ($4::text IS NULL OR status = $4) AND ($5 IS NULL OR state = ANY ($5))
   ORDER BY id DESC LIMIT $6
)
SELECT ARRAY (SELECT id FROM fitting ORDER BY id DESC) AS ids, (SELECT min(id) FROM searched) AS lowest_id,
       (SELECT count(*) FROM searched) < $7 AS whole;

-- name: page_of_few
-- The same for an account with few trackers: it reads all of them, down to the last of $7 waiting ones. Adding 0 prevents a walk along
-- trackers_pkey over all other accounts' trackers. Indexes: trackers_account, tracker_intake_pkey.
WITH waiting AS MATERIALIZED (
  SELECT id, account_no, partner_no, status FROM tickwright.tracker_intake WHERE id < $1 ORDER BY id DESC LIMIT $7
), edge AS MATERIALIZED (
  SELECT CASE WHEN count(*) < $7 THEN 0 ELSE min(id) END AS id FROM waiting
), searched AS MATERIALIZED (
  SELECT t.id, t.partner_no, t.status, CASE WHEN t.ended_at IS NULL THEN 'placed' ELSE 'ended' END AS state FROM tickwright.trackers t
   WHERE t.account_no = $2 AND t.id + 0 < $1 AND t.id + 0 >= (SELECT id FROM edge)
  UNION ALL
  SELECT id, partner_no, status, 'waiting' FROM waiting WHERE account_no = $2
), fitting AS (
  SELECT id FROM searched
   WHERE ($3::smallint IS NULL OR partner_no = $3) AND ($4::text IS NULL OR status = $4)
     AND ($5::text[] IS NULL OR state = ANY ($5))
   ORDER BY id DESC LIMIT $6
)
SELECT ARRAY (SELECT id FROM fitting ORDER BY id DESC) AS ids, edge.id AS lowest_id, edge.id = 0 AS whole FROM edge;

-- name: page_by_external
-- Trackers that pass the filters with external ids after $1 (or equal, of a partner above $8) and before $9, in that order, of the next
-- $7 trackers; $2 to $6 as in page. Indexes: trackers_external, tracker_intake_external_id_partner_no_key.
WITH searched AS MATERIALIZED (
  SELECT external_id, partner_no, id, account_no, status, state FROM (
    (SELECT external_id, partner_no, id, account_no, status, CASE WHEN ended_at IS NULL THEN 'placed' ELSE 'ended' END AS state
       FROM tickwright.trackers
      WHERE (external_id, partner_no) > ($1, $8::smallint) AND external_id < $9 AND ($5::text[] IS NULL OR $5 && '{placed,ended}')
      ORDER BY external_id, partner_no LIMIT $7)
    UNION ALL
    (SELECT external_id, partner_no, id, account_no, status, 'waiting' FROM tickwright.tracker_intake
      WHERE (external_id, partner_no) > ($1, $8) AND external_id < $9 AND ($5 IS NULL OR 'waiting' = ANY ($5))
      ORDER BY external_id, partner_no LIMIT $7)
  ) AS both_tables ORDER BY external_id, partner_no LIMIT $7
), fitting AS MATERIALIZED (
  SELECT external_id, partner_no, id FROM searched
   WHERE ($2::integer IS NULL OR account_no = $2) AND ($3::smallint IS NULL OR partner_no = $3)
     AND ($4::text IS NULL OR status = $4) AND ($5 IS NULL OR state = ANY ($5))
   ORDER BY external_id, partner_no LIMIT $6
), last AS (
  SELECT external_id, partner_no FROM searched ORDER BY external_id DESC, partner_no DESC LIMIT 1
)
SELECT ARRAY (SELECT id FROM fitting ORDER BY external_id, partner_no) AS ids,
       ARRAY (SELECT external_id::text FROM fitting ORDER BY external_id, partner_no) AS external_ids,
       ARRAY (SELECT partner_no FROM fitting ORDER BY external_id, partner_no) AS partner_nos,
       (SELECT external_id FROM last) AS last_external_id, (SELECT partner_no FROM last) AS last_partner_no,
       (SELECT count(*) FROM searched) < $7 AS whole;

-- name: is_few
-- Whether an account has at most $2 trackers. Index: trackers_account.
SELECT count(*) <= $2 FROM (SELECT FROM tickwright.trackers WHERE account_no = $1 LIMIT $2 + 1) AS first;

-- name: account_number
-- The number of an account; a new one gets the default interval. Index: polling_schedule_config_pkey.
SELECT tickwright.account_number($1::text);

-- name: account_numbers
-- The same for many. Index: polling_schedule_config_pkey.
SELECT count(tickwright.account_number(wanted)) FROM unnest($1::text[]) AS wanted;

-- name: partner_names
-- The names of all partners. Small: a row per partner.
SELECT name FROM tickwright.partners;

-- name: register
-- Put one tracker into the intake, unless it is there. Indexes: polling_schedule_config_pkey, partners_pkey.
INSERT INTO tickwright.tracker_intake (account_no, partner_no, status, external_id, tracking_until)
SELECT c.account_no, p.partner_no, coalesce($4::text, 'registered'), $3::text,
       coalesce($5::timestamptz, now() + make_interval(days => c.max_age_days))
  FROM tickwright.polling_schedule_config c, tickwright.partners p WHERE c.account_id = $1::text AND p.name = $2::text
    ON CONFLICT DO NOTHING
RETURNING id;

-- name: find
-- The tracker of an external id, placed or waiting; a placed one first. Indexes: trackers_external, tracker_intake_external_id_partner_no_key.
SELECT found.id
  FROM tickwright.partners p CROSS JOIN LATERAL (
    SELECT 1 AS place, t.id FROM tickwright.trackers t WHERE t.external_id = $1::text AND t.partner_no = p.partner_no
    UNION ALL
    SELECT 2, i.id FROM tickwright.tracker_intake i WHERE i.external_id = $1::text AND i.partner_no = p.partner_no) AS found
 WHERE p.name = $2::text ORDER BY found.place LIMIT 1;

-- name: unregister
-- Remove a row that was just put into the intake. Index: tracker_intake_pkey.
DELETE FROM tickwright.tracker_intake WHERE id = $1::bigint RETURNING id;

-- name: register_many
-- Put trackers into the intake that are neither there nor placed. Rows are inserted in one order, so two imports of one file cannot
-- deadlock. Indexes: polling_schedule_config_pkey, partners_pkey, trackers_external.
INSERT INTO tickwright.tracker_intake (account_no, partner_no, external_id, status, tracking_until)
SELECT c.account_no, p.partner_no, u.external_id, coalesce(u.status, 'registered'),
       coalesce(u.tracking_until, now() + make_interval(days => c.max_age_days))
  FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[])
       AS u (account_id, partner, external_id, status, tracking_until)
  JOIN tickwright.polling_schedule_config c ON c.account_id = u.account_id
  JOIN tickwright.partners p ON p.name = u.partner
 WHERE NOT EXISTS (SELECT FROM tickwright.trackers t WHERE t.external_id = u.external_id AND t.partner_no = p.partner_no)
 ORDER BY u.external_id COLLATE "C", p.partner_no
    ON CONFLICT DO NOTHING;

-- name: lock_waiting
-- One tracker that waits for its place, locked against the registrar. Index: tracker_intake_pkey.
SELECT i.id, i.status, i.status_at, i.external_id, NULL::timestamptz AS ended_at, c.account_id, c.polling_interval_minutes,
       p.name AS partner, p.settings->'terminal_statuses' AS terminal, clock_timestamp() AS now
  FROM tickwright.tracker_intake i
  JOIN tickwright.polling_schedule_config c ON c.account_no = i.account_no
  JOIN tickwright.partners p ON p.partner_no = i.partner_no
 WHERE i.id = $1 FOR UPDATE OF i;

-- name: lock_placed
-- One tracker that is placed or has ended, locked. Index: trackers_pkey.
SELECT t.id, t.status, t.status_at, t.external_id, t.ended_at, c.account_id, c.polling_interval_minutes,
       p.name AS partner, p.settings->'terminal_statuses' AS terminal, clock_timestamp() AS now
  FROM tickwright.trackers t
  JOIN tickwright.polling_schedule_config c ON c.account_no = t.account_no
  JOIN tickwright.partners p ON p.partner_no = t.partner_no
 WHERE t.id = $1 FOR UPDATE OF t;

-- name: end_waiting
-- End a tracker before it is placed, by $2; it is kept as any other ended one. Index: tracker_intake_pkey.
WITH taken AS (DELETE FROM tickwright.tracker_intake WHERE id = $1 RETURNING *)
INSERT INTO tickwright.trackers
       (id, created_at, tracking_until, last_polled_at, status_at, skip_until, ended_at, ended_by, account_no, partner_no, status, external_id)
SELECT id, created_at, tracking_until, last_polled_at, status_at, skip_until, clock_timestamp(), $2, account_no, partner_no, status, external_id
  FROM taken
RETURNING ended_at;

-- name: end_placed
-- End a placed tracker, by $2; its row gets the instant of the last poll from the ledger. Indexes: trackers_pkey, poll_done_due.
UPDATE tickwright.trackers t
   SET ended_at = clock_timestamp(), ended_by = $2, place = NULL,
       last_polled_at = (SELECT v.last_polled_at FROM tickwright.shipment_polling_tracker v WHERE v.id = t.id)
 WHERE t.id = $1 AND t.ended_at IS NULL
RETURNING ended_at;

-- name: note_event
-- Store the sender's id of an event; no row when it is stored already. Index: tracker_events_pkey.
INSERT INTO tickwright.tracker_events (tracker_id, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING tracker_id;

-- name: forget_events
-- Delete two event ids from before $1, of any sender. It runs with each new one, so that the table holds a week.
-- Index: tracker_events_age.
DELETE FROM tickwright.tracker_events
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM tickwright.tracker_events WHERE received_at < clock_timestamp() - $1::interval
                           ORDER BY received_at LIMIT 2 FOR UPDATE SKIP LOCKED));

-- name: event_waiting
-- Apply an event to a tracker that waits for its place. Index: tracker_intake_pkey.
UPDATE tickwright.tracker_intake
   SET status = $2, status_at = $3, skip_until = clock_timestamp() + make_interval(mins => $4) WHERE id = $1
RETURNING skip_until;

-- name: event_placed
-- Apply an event to a placed tracker: it is not polled before $4 minutes from now. Index: trackers_pkey; the row stays HOT.
UPDATE tickwright.trackers
   SET status = $2, status_at = $3, skip_until = clock_timestamp() + make_interval(mins => $4) WHERE id = $1
RETURNING skip_until;

-- name: set_events_destination
-- Store the destination of poll events, for programs that change trackers by plain SQL. One row.
UPDATE tickwright.poll_news SET destination = $1 WHERE destination <> $1;

-- name: explain
-- Everything that decides where a tracker is. Index: primary keys, poll_done_due; it reads all rows of one second of one slot in
-- scheduler_outbox and poll_queue, which hold a minute or two.
WITH tracker AS MATERIALIZED (
  SELECT t.id, t.status, t.status_at, t.skip_until, t.ended_at, t.ended_by, t.tracking_until, t.created_at, t.last_polled_at, t.place,
         t.account_no, t.partner_no, false AS waiting
    FROM tickwright.trackers t WHERE t.id = $1
  UNION ALL
  SELECT i.id, i.status, i.status_at, i.skip_until, NULL, NULL, i.tracking_until, i.created_at, i.last_polled_at, NULL, i.account_no, i.partner_no, true
    FROM tickwright.tracker_intake i WHERE i.id = $1
   LIMIT 1
), facts AS MATERIALIZED (
  SELECT x.*, c.account_id, c.paused_at AS account_paused_at, c.polls_per_slice_max, c.polling_interval_minutes, c.placed_interval_minutes,
         p.name AS partner, p.paused_at AS partner_paused_at, p.settings->'terminal_statuses' AS terminal,
         s.slot_id, s.interval_minutes, x.place % 60 AS second, s.missed_due_at,
         s.next_due_at + x.place % 60 * interval '1 second' AS next_at, s.prev_due_at,
         s.prev_due_at + x.place % 60 * interval '1 second' AS turn_at,
         b.breaker, b.open_until, b.blocked_until, b.last_error, b.next_free_at, p.settings::text AS settings
    FROM tracker x
    JOIN tickwright.polling_schedule_config c ON c.account_no = x.account_no
    JOIN tickwright.partners p ON p.partner_no = x.partner_no
    LEFT JOIN tickwright.poll_slots s ON s.slot_id = x.place / 60
    LEFT JOIN tickwright.partner_states b ON b.partner_no = x.partner_no
)
SELECT f.*, clock_timestamp() AS now, v.next_poll_at, v.last_polled_at AS answered_at,
       o.release_at, o.batch_no, q.seq AS queue_seq, q.owner, q.taken_at, w.name AS worker_name,
       l.selected AS turn_selected, l.deferred AS turn_deferred, d.done_at,
       (SELECT max(r.published_at) FROM tickwright.poll_relays r) AS published_at,
       (SELECT count(*) FROM tickwright.workers c
         WHERE c.lost_at IS NULL AND c.lease_until > clock_timestamp() AND 'poll-consumer' = ANY (c.roles)) AS consumers,
       CASE WHEN EXISTS (SELECT FROM tickwright.workers c
                          WHERE c.lost_at IS NULL AND c.lease_until > clock_timestamp() AND c.facts -> 'partners' ? f.partner)
                 THEN CASE WHEN f.settings::jsonb ? 'target' THEN 'remote' ELSE 'function' END
            WHEN jsonb_typeof(f.settings::jsonb -> 'http') = 'object' THEN 'http' END AS called_by,
       (SELECT j.lease_until > clock_timestamp() FROM tickwright.job_config j WHERE j.job_name = 'registrar') AS registrar_lives,
       (SELECT j.lease_until > clock_timestamp() FROM tickwright.job_config j WHERE j.job_name = 'selector') AS selector_lives
  FROM facts f
  JOIN tickwright.shipment_polling_tracker v ON v.id = $1 -- a value, not f.id: with f.id PostgreSQL would read the whole view
  LEFT JOIN LATERAL (
    SELECT o.release_at, o.batch_no FROM tickwright.scheduler_outbox o
     WHERE o.slot_id = f.slot_id AND o.due_at = f.turn_at AND o.partner_no = f.partner_no AND f.id = ANY (o.ids) LIMIT 1) AS o ON true
  LEFT JOIN LATERAL (
    SELECT q.seq, q.owner, q.taken_at FROM tickwright.poll_queue q
     WHERE q.slot_id = f.slot_id AND q.due_at = f.turn_at AND q.partner_no = f.partner_no AND f.id = ANY (q.ids) LIMIT 1) AS q ON true
  LEFT JOIN tickwright.workers w ON w.id = q.owner
  LEFT JOIN tickwright.poll_slices l ON l.due_at = f.prev_due_at AND l.slot_id = f.slot_id AND l.partner_no = f.partner_no
  LEFT JOIN LATERAL (
    SELECT max(d.done_at) AS done_at FROM tickwright.poll_done d
     WHERE d.slot_id = f.slot_id AND d.due_at = f.turn_at AND d.partner_no = f.partner_no AND f.id = ANY (d.ids)) AS d ON true;
