-- name: put_entities
-- $1 entities that are polled for four modules, with party documents of some 300 bytes.
INSERT INTO tickwright.entities (code, party, polling_enabled_modules)
SELECT 'DE*' || lpad(n::text, 6, '0'),
       jsonb_build_object(
         'country_code', 'DE', 'party_id', 'P' || n, 'url', 'https://ocpi.example.com/cpo/2.2.1/' || n,
         'token', '${env:OCPI_TOKEN_' || n || '}', 'version', '2.2.1', 'time_zone', 'Europe/Berlin',
         'roles', jsonb_build_array(jsonb_build_object('role', 'CPO', 'business_details', jsonb_build_object('name', 'Charge point operator ' || n)))),
       'LOCATIONS,SESSIONS,TARIFFS,CDRS'
  FROM generate_series(1, $1::integer) AS n
RETURNING code;

-- name: set_modules
-- Windows of $1 seconds for every module, none of them behind a gate.
UPDATE tickwright.modules SET interval_seconds = $1, is_gated = false RETURNING name;

-- name: touches
-- How often anything read or wrote each table of fan-out, as far as connections have reported it: within ten seconds.
SELECT json_object_agg(relname, coalesce(seq_scan, 0) + coalesce(idx_scan, 0) + n_tup_ins + n_tup_upd + n_tup_del)
  FROM pg_stat_user_tables
 WHERE schemaname = 'tickwright' AND relname IN ('entities', 'modules', 'fanout_cursors', 'fanout_windows', 'fanout_claims');

-- name: schedulers
-- Schedulers that have registered and live.
SELECT count(*) FROM tickwright.workers WHERE 'scheduler' = ANY (roles) AND lost_at IS NULL;

-- name: hold_leases
-- Hold the leases of the rounds that read the tables of fan-out now and then, for an hour: only the schedulers are
-- to be seen in the statistics.
INSERT INTO tickwright.job_config (job_name, running, owner, version, lease_until)
SELECT name, true, 'bench', 1, clock_timestamp() + interval '1 hour' FROM unnest($1::text[]) AS name
    ON CONFLICT (job_name) DO UPDATE
   SET running = true, owner = excluded.owner, version = job_config.version + 1, lease_until = excluded.lease_until
RETURNING job_name;

-- name: release_leases
-- Release the leases that the bench holds.
UPDATE tickwright.job_config SET running = false, owner = NULL, lease_until = NULL WHERE owner = 'bench' RETURNING job_name;
