-- name: has_trackers
-- Whether the example's trackers are registered. Indexes: tracker_intake_pkey, trackers_pkey.
SELECT EXISTS (SELECT FROM tickwright.tracker_intake) OR EXISTS (SELECT FROM tickwright.trackers);

-- name: put_account
-- An account of the example.
INSERT INTO tickwright.polling_schedule_config (account_id, polling_interval_minutes) VALUES ($1, $2)
    ON CONFLICT (account_id) DO NOTHING;

-- name: put_partner
-- A courier of the example; its port changes with each start.
INSERT INTO tickwright.partners (name, settings) VALUES ($1, $2::jsonb)
    ON CONFLICT (name) DO UPDATE SET settings = excluded.settings, updated_at = clock_timestamp();

-- name: register
-- The example's trackers, registered by a plain INSERT as any program can.
INSERT INTO tickwright.shipment_polling_tracker (account_id, partner, external_id)
SELECT 'account-' || lpad((n % $1::integer)::text, 2, '0'), ($2::text[])[1 + n % cardinality($2::text[])], 'AWB' || lpad(n::text, 6, '0')
  FROM generate_series(1, $3::integer) AS n;

-- name: put_entity
-- A provider of the example's hub; its port changes with each start. The token is a reference. Index: entities_pkey.
INSERT INTO tickwright.entities (code, party, polling_enabled_modules)
VALUES ($1, jsonb_build_object('locations', $2::text, 'token', '${env:' || $3::text || '}'), 'LOCATIONS')
    ON CONFLICT (code) DO UPDATE SET party = excluded.party, is_polling_enabled = true;

-- name: pause_entities
-- Pause the hub's providers. Index: entities_pkey.
UPDATE tickwright.entities SET is_polling_enabled = false WHERE code = ANY ($1::text[]) AND is_polling_enabled;

-- name: providers
-- When each of the hub's providers was called. Index: fanout_cursors_pkey.
SELECT wanted.code,
       extract(epoch FROM clock_timestamp() - c.running_since)::float8,
       extract(epoch FROM clock_timestamp() - c.last_success_at)::float8,
       coalesce(c.failures, 0)
  FROM unnest($1::text[]) WITH ORDINALITY AS wanted (code, place)
  LEFT JOIN tickwright.fanout_cursors c ON c.entity_code = wanted.code AND c.task_type = 'LOCATIONS'
 ORDER BY wanted.place;

-- name: soon
-- An instant some seconds ahead, by the database's clock. No table.
SELECT date_trunc('second', clock_timestamp()) + make_interval(secs => $1::float8);
