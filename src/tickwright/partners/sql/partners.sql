-- name: open_states
-- Create the rows of partners that were not called before. Index: partner_states_pkey.
INSERT INTO tickwright.partner_states (partner_no)
SELECT p.partner_no FROM tickwright.partners p WHERE p.partner_no = ANY ($1::smallint[]) ORDER BY p.partner_no
    ON CONFLICT DO NOTHING;

-- name: lock_states
-- Lock the shared state of the partners $1, in their order, until the end of the transaction. A transaction that stalls is ended by
-- PostgreSQL long before a lease ends. Index: partner_states_pkey.
SELECT set_config('idle_in_transaction_session_timeout', '3000', true)
  FROM tickwright.partner_states WHERE partner_no = ANY ($1::smallint[]) ORDER BY partner_no FOR UPDATE;

-- name: read_states
-- The shared state of the partners $1, the share of their concurrency that each live session was granted, and the clock.
-- ``version`` changes with every write. Index: partner_states_pkey, partners_partner_no_key, partner_shares_pkey, workers_pkey.
SELECT s.partner_no, p.settings::text AS settings, p.paused_at IS NOT NULL AS paused, s.xmin::text AS version,
       date_part('epoch', clock_timestamp()) AS now_s,
       date_part('epoch', s.next_free_at) AS next_free_s, coalesce(date_part('epoch', s.blocked_until), 0) AS blocked_until_s,
       s.breaker, coalesce(date_part('epoch', s.open_until), 0) AS open_until_s, s.opened_times,
       s.trial_owner, coalesce(date_part('epoch', s.trial_until), 0) AS trial_until_s,
       date_part('epoch', s.window_at) AS window_at_s, s.window_ok, s.window_failed,
       ARRAY (SELECT row(h.worker, h.granted)
                FROM tickwright.partner_shares h JOIN tickwright.workers w ON w.id = h.worker AND w.lost_at IS NULL
               WHERE h.partner_no = s.partner_no) AS shares
  FROM tickwright.partner_states s JOIN tickwright.partners p USING (partner_no)
 WHERE s.partner_no = ANY ($1::smallint[]) ORDER BY s.partner_no;

-- name: write_exchange
-- Write the decisions of an exchange, column by column, and this session's shares (NULL releases a share). It writes nothing when a row
-- no longer has the version $3 that was read, or when the session was declared lost. Returns the number of written rows.
-- Index: workers_pkey, partner_states_pkey, partner_shares_pkey.
WITH mine AS MATERIALIZED (
  SELECT id FROM tickwright.workers WHERE id = $1 AND lost_at IS NULL FOR KEY SHARE
), decided AS MATERIALIZED (
  SELECT * FROM unnest($2::smallint[], $3::text[], $4::float8[], $5::float8[], $6::text[], $7::float8[], $8::integer[],
                       $9::bigint[], $10::float8[], $11::float8[], $12::integer[], $13::integer[], $14::integer[], $15::text[])
    AS u (partner_no, version, next_free_s, blocked_until_s, breaker, open_until_s, opened_times, trial_owner,
          trial_until_s, window_at_s, window_ok, window_failed, granted, error)
), same AS MATERIALIZED (
  SELECT s.partner_no FROM tickwright.partner_states s JOIN decided d ON d.partner_no = s.partner_no
   WHERE s.partner_no = ANY ($2::smallint[]) AND s.xmin::text = d.version ORDER BY s.partner_no FOR UPDATE OF s
), writer AS MATERIALIZED (
  SELECT id FROM mine WHERE (SELECT count(*) FROM same) = cardinality($2::smallint[])
), written AS (
  UPDATE tickwright.partner_states s
     SET next_free_at = to_timestamp(d.next_free_s), blocked_until = to_timestamp(nullif(d.blocked_until_s, 0)),
         breaker = d.breaker, open_until = to_timestamp(nullif(d.open_until_s, 0)), opened_times = d.opened_times,
         trial_owner = d.trial_owner, trial_until = to_timestamp(nullif(d.trial_until_s, 0)),
         window_at = to_timestamp(d.window_at_s), window_ok = d.window_ok, window_failed = d.window_failed,
         failing_since = CASE WHEN d.breaker = 'closed' THEN NULL ELSE coalesce(s.failing_since, clock_timestamp()) END,
         last_error = coalesce(d.error, s.last_error),
         last_error_at = CASE WHEN d.error IS NULL THEN s.last_error_at ELSE clock_timestamp() END,
         changed_at = CASE WHEN d.breaker = s.breaker THEN s.changed_at ELSE clock_timestamp() END
    FROM decided d, writer WHERE s.partner_no = d.partner_no
  RETURNING s.partner_no
), released AS (
  DELETE FROM tickwright.partner_shares h USING decided d, writer
   WHERE h.partner_no = d.partner_no AND h.worker = writer.id AND d.granted IS NULL
), granted AS (
  INSERT INTO tickwright.partner_shares AS h (partner_no, worker, granted)
  SELECT d.partner_no, writer.id, d.granted FROM decided d, writer WHERE d.granted IS NOT NULL
      ON CONFLICT (partner_no, worker) DO UPDATE SET granted = excluded.granted WHERE h.granted <> excluded.granted
)
SELECT count(*) FROM written;

-- name: list_partners
-- Every partner with its settings. Small: a row per partner.
SELECT partner_no, name, settings::text AS settings FROM tickwright.partners ORDER BY name;

-- name: declare_partner
-- Create a partner that a program declares, unless it has settings. Index: partners_pkey.
INSERT INTO tickwright.partners AS p (name, settings) VALUES ($1, $2::jsonb)
    ON CONFLICT (name) DO UPDATE SET settings = excluded.settings, updated_at = clock_timestamp() WHERE p.settings = '{}';

-- name: put_partner
-- Set a partner's settings; equal ones change nothing. Index: partners_pkey.
INSERT INTO tickwright.partners AS p (name, settings) VALUES ($1, $2::jsonb)
    ON CONFLICT (name) DO UPDATE SET settings = excluded.settings, updated_at = clock_timestamp()
 WHERE p.settings <> excluded.settings
RETURNING partner_no;
