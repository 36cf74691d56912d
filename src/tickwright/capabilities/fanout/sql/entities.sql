-- name: list_entities
-- A page of entities with codes above $1, from $2 to before $3; $4 is a module that they list, $5 whether they are polled. It reads at most
-- $7 of them; last_code is the last one read, if entities are left. Index: entities_pkey, by code.
SELECT found.*, stop.last_code
  FROM (SELECT CASE WHEN $4::text IS NOT NULL OR $5::boolean IS NOT NULL THEN
                 (SELECT code FROM tickwright.entities WHERE code > $1 AND code >= $2 AND code < $3
                   ORDER BY code OFFSET $7 - 1 LIMIT 1) END AS last_code) AS stop
  LEFT JOIN LATERAL (
    SELECT code, is_polling_enabled, polling_enabled_modules, partner, config_version, created_at, updated_at
      FROM (SELECT * FROM tickwright.entities WHERE code > $1 AND code >= $2 AND code < $3 ORDER BY code LIMIT $7) AS e
     WHERE ($4::text IS NULL OR $4 = ANY (regexp_split_to_array(upper(btrim(polling_enabled_modules)), '\s*,\s*')))
       AND ($5::boolean IS NULL OR is_polling_enabled = $5)
     ORDER BY code LIMIT $6) AS found ON true
 ORDER BY found.code;

-- name: get_entity
-- One entity. Index: entities_pkey.
SELECT code, party::text AS party, is_polling_enabled, polling_enabled_modules, partner, config_version, created_at, updated_at
  FROM tickwright.entities WHERE code = $1;

-- name: lock_entity
-- Serialize changes of one entity. Index: entities_pkey.
SELECT code FROM tickwright.entities WHERE code = $1 FOR UPDATE;

-- name: put_entity
-- Create an entity or replace it; an equal one changes nothing, not even its version. Index: entities_pkey.
INSERT INTO tickwright.entities AS e (code, party, is_polling_enabled, polling_enabled_modules, partner)
VALUES ($1, $2::jsonb, $3, $4, $5)
ON CONFLICT (code) DO UPDATE
   SET party = excluded.party, is_polling_enabled = excluded.is_polling_enabled,
       polling_enabled_modules = excluded.polling_enabled_modules, partner = excluded.partner
 WHERE (e.party, e.is_polling_enabled, e.polling_enabled_modules, e.partner) IS DISTINCT FROM
       (excluded.party, excluded.is_polling_enabled, excluded.polling_enabled_modules, excluded.partner)
RETURNING xmax = 0 AS created;

-- name: put_entities
-- Create or replace many entities; returns how many are new. Rows are written in the order of their codes, so two imports cannot
-- deadlock. Index: entities_pkey.
WITH given AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::boolean[], $4::text[], $5::text[])
    AS u (code, party, is_polling_enabled, polling_enabled_modules, partner)
), put AS (
  INSERT INTO tickwright.entities AS e (code, party, is_polling_enabled, polling_enabled_modules, partner)
  SELECT code, party::jsonb, is_polling_enabled, polling_enabled_modules, partner FROM given ORDER BY code COLLATE "C"
  ON CONFLICT (code) DO UPDATE
     SET party = excluded.party, is_polling_enabled = excluded.is_polling_enabled,
         polling_enabled_modules = excluded.polling_enabled_modules, partner = excluded.partner
   WHERE (e.party, e.is_polling_enabled, e.polling_enabled_modules, e.partner) IS DISTINCT FROM
         (excluded.party, excluded.is_polling_enabled, excluded.polling_enabled_modules, excluded.partner)
  RETURNING xmax = 0 AS created
)
SELECT count(*) FILTER (WHERE created) FROM put;

-- name: delete_entity
-- Delete an entity. Its cursors stay: an entity that is created again continues from them, and a running task keeps its fence.
-- Index: entities_pkey.
DELETE FROM tickwright.entities WHERE code = $1;

-- name: set_enabled
-- Start or stop polling an entity; an equal value changes nothing. Index: entities_pkey.
UPDATE tickwright.entities SET is_polling_enabled = $2 WHERE code = $1 AND is_polling_enabled <> $2;

-- name: known
-- The names of all modules, and whether the partner $1 exists; it cannot be deleted until the end of the transaction.
-- Index: modules_pkey, partners_pkey.
WITH partner AS (SELECT name FROM tickwright.partners WHERE name = $1 FOR KEY SHARE)
SELECT ARRAY (SELECT name FROM tickwright.modules ORDER BY name) AS modules, $1 IS NULL OR EXISTS (SELECT FROM partner) AS partner;

-- name: known_names
-- The names of all modules and partners. Small: a row per module and partner.
SELECT ARRAY (SELECT name FROM tickwright.modules) AS modules, ARRAY (SELECT name FROM tickwright.partners) AS partners;

-- name: module_states
-- The last results of one entity per module: the modules of the list $2, then others that it was polled for before.
-- Index: fanout_cursors_pkey, modules_pkey.
WITH names AS (
  SELECT name, nth FROM unnest($2::text[]) WITH ORDINALITY AS u (name, nth)
  UNION ALL
  SELECT task_type, NULL FROM tickwright.fanout_cursors WHERE entity_code = $1 AND task_type <> ALL ($2::text[])
)
SELECT n.name, m.name IS NOT NULL AS known, m.interval_seconds, m.timeout_ms, m.is_gated, m.paused_at,
       nullif(c.last_window_at, '-infinity') AS last_window_at, c.last_success_at,
       CASE WHEN c.owner IS NOT NULL THEN c.running_since END AS running_since,
       CASE WHEN c.owner IS NOT NULL THEN c.running_window_at END AS running_window_at,
       coalesce(c.failures, 0) AS failures, c.last_error, c.last_error_at, clock_timestamp() AS now
  FROM names n
  LEFT JOIN tickwright.modules m ON m.name = n.name
  LEFT JOIN tickwright.fanout_cursors c ON c.entity_code = $1 AND c.task_type = n.name
 ORDER BY n.nth, n.name LIMIT 200;

-- name: explain
-- Facts that decide whether tasks of an entity for the module $2 are published and run: live schedulers and the module's gates in their
-- environments, live consumers and those with a function for it, and the state of the partner.
-- Index: entities_pkey, partners_pkey, partner_states_pkey.
WITH live AS (
  SELECT w.roles, w.facts FROM tickwright.workers w WHERE w.lost_at IS NULL AND w.lease_until > clock_timestamp()
)
SELECT e.code, e.is_polling_enabled, e.polling_enabled_modules, e.partner, clock_timestamp() AS now,
       p.paused_at AS partner_paused_at, p.settings::text AS settings, s.breaker, s.open_until, s.blocked_until,
       s.next_free_at, s.last_error AS partner_error,
       (SELECT count(*) FROM live WHERE facts ? 'gates') AS schedulers,
       (SELECT count(*) FROM live WHERE facts -> 'gates' -> $2 = 'true') AS opening,
       (SELECT count(*) FROM live WHERE facts -> 'gates' -> $2 = 'false') AS closing,
       (SELECT count(*) FROM live WHERE 'fanout-consumer' = ANY (roles)) AS consumers,
       (SELECT count(*) FROM live WHERE facts -> 'modules' ? $2) AS able
  FROM tickwright.entities e
  LEFT JOIN tickwright.partners p ON p.name = e.partner
  LEFT JOIN tickwright.partner_states s ON s.partner_no = p.partner_no
 WHERE e.code = $1;
