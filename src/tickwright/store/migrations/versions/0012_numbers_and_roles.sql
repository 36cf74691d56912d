-- Numbers that do not run out, and the rights of roles that use plain SQL only. See ADR-0023.
-- Forward on a live system: new tables, functions and triggers, and changes of the catalogue. Trackers are read once.

------------------------------------------------------------------------------------------------ numbers of partners and accounts
CREATE TABLE tickwright.retired_numbers (
  kind   text    NOT NULL CHECK (kind IN ('account', 'partner')),
  number integer NOT NULL,
  PRIMARY KEY (kind, number)
);
COMMENT ON TABLE tickwright.retired_numbers IS
  'Numbers of deleted accounts and partners: trackers, polls under way and ledgers may still name them, so they are never given again.';

INSERT INTO tickwright.retired_numbers (kind, number)
SELECT DISTINCT n.kind, n.number
  FROM (SELECT DISTINCT account_no, partner_no FROM tickwright.trackers
        UNION SELECT account_no, partner_no FROM tickwright.tracker_intake) AS t
 CROSS JOIN LATERAL (VALUES ('account', t.account_no), ('partner', t.partner_no)) AS n (kind, number)
 WHERE NOT EXISTS (SELECT FROM tickwright.partners p WHERE n.kind = 'partner' AND p.partner_no = n.number)
   AND NOT EXISTS (SELECT FROM tickwright.polling_schedule_config c WHERE n.kind = 'account' AND c.account_no = n.number);

CREATE FUNCTION tickwright.retire_number() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tickwright.retired_numbers (kind, number) VALUES (TG_ARGV[0], (to_jsonb(OLD) ->> TG_ARGV[1])::integer) ON CONFLICT DO NOTHING;
  RETURN NULL;
END $$;
CREATE TRIGGER partners_deleted AFTER DELETE ON tickwright.partners
  FOR EACH ROW EXECUTE FUNCTION tickwright.retire_number('partner', 'partner_no');
CREATE TRIGGER polling_schedule_config_deleted AFTER DELETE ON tickwright.polling_schedule_config
  FOR EACH ROW EXECUTE FUNCTION tickwright.retire_number('account', 'account_no');

-- A partner's number is the lowest free one. A sequence would lose one at each INSERT … ON CONFLICT and at each rollback. The lock belongs to
-- the number and not to the table, so two transactions that add partners do not wait for each other; it ends with the transaction.
ALTER TABLE tickwright.partners ALTER COLUMN partner_no DROP IDENTITY;
CREATE FUNCTION tickwright.number_partner() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  candidate integer;
BEGIN
  SELECT partner_no INTO NEW.partner_no FROM tickwright.partners WHERE name = NEW.name;
  IF FOUND THEN
    RETURN NEW;                            -- the INSERT ends in its ON CONFLICT
  END IF;
  FOR candidate IN
    WITH used (n) AS (SELECT 0 UNION SELECT partner_no FROM tickwright.partners
                      UNION SELECT number FROM tickwright.retired_numbers WHERE kind = 'partner')
    SELECT n + 1 FROM used WHERE NOT EXISTS (SELECT FROM used next WHERE next.n = used.n + 1) ORDER BY n
  LOOP
    WHILE candidate <= 32767 LOOP
      IF pg_try_advisory_xact_lock(73130, candidate) THEN
        EXIT WHEN EXISTS (SELECT FROM tickwright.partners WHERE partner_no = candidate)
               OR EXISTS (SELECT FROM tickwright.retired_numbers WHERE kind = 'partner' AND number = candidate);
        NEW.partner_no := candidate;
        RETURN NEW;
      END IF;
      candidate := candidate + 1;          -- a transaction that is open has it
    END LOOP;
  END LOOP;
  RAISE EXCEPTION 'too_many_partners: all 32767 numbers of partners are in use'
    USING ERRCODE = 'program_limit_exceeded', HINT = 'One partner can serve many accounts; use fewer partners.';
END $$;
CREATE TRIGGER partners_numbered BEFORE INSERT ON tickwright.partners FOR EACH ROW WHEN (NEW.partner_no IS NULL)
  EXECUTE FUNCTION tickwright.number_partner();

CREATE OR REPLACE FUNCTION tickwright.partner_number(wanted text) RETURNS smallint LANGUAGE plpgsql AS $$
DECLARE
  found smallint;
BEGIN
  SELECT partner_no INTO found FROM tickwright.partners WHERE name = wanted;
  IF found IS NULL THEN
    IF (SELECT count(*) FROM tickwright.partners) >= 1000 THEN
      PERFORM tickwright.refuse_tracker('too_many_partners',
        'a tracker adds a partner only while there are fewer than 1000; add this one with PUT /v1/partners/NAME');
    END IF;
    INSERT INTO tickwright.partners (name) VALUES (wanted) ON CONFLICT DO NOTHING;
    SELECT partner_no INTO found FROM tickwright.partners WHERE name = wanted;
  END IF;
  RETURN found;
END $$;

-- An account's number comes from a sequence of 2^31 that begins again at its end; a number that is in use is passed over.
ALTER TABLE tickwright.polling_schedule_config ALTER COLUMN account_no SET CYCLE;
CREATE OR REPLACE FUNCTION tickwright.begin_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.placed_interval_minutes := NEW.polling_interval_minutes;
  WHILE EXISTS (SELECT FROM tickwright.polling_schedule_config c WHERE c.account_no = NEW.account_no AND c.account_id <> NEW.account_id)
     OR EXISTS (SELECT FROM tickwright.retired_numbers r WHERE r.kind = 'account' AND r.number = NEW.account_no) LOOP
    NEW.account_no := nextval('tickwright.polling_schedule_config_account_no_seq');
  END LOOP;
  RETURN NEW;
END $$;

------------------------------------------------------------------------------------------------ ids of trackers
-- An id that is given moves the sequence behind it, also when the INSERT is rolled back. Up to 2^52, so that as many ids are left behind it.
CREATE OR REPLACE FUNCTION tickwright.register_tracker() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  account integer;
  served smallint;
BEGIN
  IF NEW.account_id IS NULL OR NEW.partner IS NULL THEN
    PERFORM tickwright.refuse_tracker('tracker_incomplete', 'a tracker needs account_id and partner');
  END IF;
  IF NEW.partner !~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,49}$' THEN
    PERFORM tickwright.refuse_tracker('invalid_partner', 'partner: 1 to 50 letters, digits, ''_'', ''.'' or ''-''');
  END IF;
  IF NEW.external_id = '' THEN
    PERFORM tickwright.refuse_tracker('invalid_tracker', 'external_id: 1 to 200 characters');
  END IF;
  IF NEW.next_poll_at IS NOT NULL OR NEW.ended_at IS NOT NULL THEN
    PERFORM tickwright.refuse_tracker('tracker_read_only',
      'next_poll_at and ended_at cannot be given: leave them out; its account''s interval decides when it is polled');
  END IF;
  IF NEW.last_polled_at > clock_timestamp() THEN
    PERFORM tickwright.refuse_tracker('invalid_tracker', 'last_polled_at: not ahead of the clock');
  END IF;
  IF NEW.id IS NULL THEN
    NEW.id := nextval('tickwright.tracker_ids');
  ELSIF NEW.id NOT BETWEEN 1 AND 4503599627370496 THEN
    PERFORM tickwright.refuse_tracker('invalid_tracker', 'id: 1 to 4503599627370496; leave it out to get the next one');
  ELSIF NEW.id > (SELECT last_value FROM tickwright.tracker_ids) THEN
    PERFORM pg_advisory_lock(7313, 11); -- the sequence never goes back: others draw from it now, and look at it, too
    IF NEW.id > (SELECT last_value FROM tickwright.tracker_ids) THEN
      PERFORM setval('tickwright.tracker_ids', NEW.id);
    END IF;
    PERFORM pg_advisory_unlock(7313, 11);
  END IF;
  account := tickwright.account_number(NEW.account_id);
  served := tickwright.partner_number(NEW.partner);
  NEW.external_id := coalesce(NEW.external_id, NEW.id::text);
  NEW.status := coalesce(NEW.status, 'registered');
  NEW.created_at := coalesce(NEW.created_at, now());
  IF NEW.tracking_until IS NULL THEN
    SELECT NEW.created_at + make_interval(days => max_age_days) INTO NEW.tracking_until
      FROM tickwright.polling_schedule_config WHERE account_no = account;
  END IF;
  INSERT INTO tickwright.tracker_intake (id, account_no, partner_no, status, external_id, created_at, tracking_until, last_polled_at)
  VALUES (NEW.id, account, served, NEW.status, NEW.external_id, NEW.created_at, NEW.tracking_until, NEW.last_polled_at) ON CONFLICT DO NOTHING;
  -- Placed trackers are looked at after the insert: one that is being placed holds the intake's key until it is there.
  IF NOT FOUND OR EXISTS (SELECT FROM tickwright.trackers WHERE external_id = NEW.external_id AND partner_no = served)
     OR EXISTS (SELECT FROM tickwright.trackers WHERE id = NEW.id) THEN
    RAISE unique_violation USING
      MESSAGE = format('tracker_exists: %s is registered with %s already, or there is a tracker %s', NEW.external_id, NEW.partner, NEW.id);
  END IF;
  RETURN NEW;
END $$;

-- A sequence that was moved beyond goes back behind the last id that is in use.
SELECT setval('tickwright.tracker_ids', greatest(
         1, (SELECT max(id) FROM tickwright.trackers WHERE id <= 4503599627370496),
         (SELECT max(id) FROM tickwright.tracker_intake WHERE id <= 4503599627370496)))
 WHERE (SELECT last_value FROM tickwright.tracker_ids) > 4503599627370496;

------------------------------------------------------------------------------------------------ what roles that are not ours may write
CREATE FUNCTION tickwright.is_ours() RETURNS boolean LANGUAGE sql STABLE
RETURN has_table_privilege(current_user, 'tickwright.outbox', 'UPDATE');
COMMENT ON FUNCTION tickwright.is_ours() IS
  'Whether the current role runs Tickwright: it may change any row of the outbox. Roles that use plain SQL only may add rows.';

CREATE TABLE tickwright.reserved_prefixes (
  prefix text PRIMARY KEY
);
INSERT INTO tickwright.reserved_prefixes VALUES ('tickwright');
COMMENT ON TABLE tickwright.reserved_prefixes IS
  'Prefixes of our own exchanges, queues and topics. Each process adds its own at its start.';

CREATE FUNCTION tickwright.is_internal(destination text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT destination LIKE 'alert:%' OR EXISTS (
    SELECT FROM tickwright.reserved_prefixes r
     WHERE starts_with(regexp_replace(destination, '^(amqp:/?|kafka:|pg:)', ''), r.prefix || '.') AND destination ~ '^(amqp|kafka|pg):')
$$;
COMMENT ON FUNCTION tickwright.is_internal(text) IS
  'Whether only Tickwright itself sends to this destination: receivers of alerts, and exchanges, queues and topics under our prefixes.';

CREATE OR REPLACE FUNCTION tickwright.ring_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  refused text;
BEGIN
  IF NOT tickwright.is_ours() THEN
    SELECT destination INTO refused FROM new_rows WHERE tickwright.is_internal(destination) LIMIT 1;
    IF FOUND THEN
      RAISE EXCEPTION 'destination_reserved: only Tickwright itself sends to %', left(refused, 200)
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'Use a destination of your own: an exchange or a topic without Tickwright''s prefix, or an https:// URL.';
    END IF;
  END IF;
  IF EXISTS (SELECT FROM new_rows WHERE next_at <= clock_timestamp() + interval '1 second')
     AND NOT pg_try_advisory_xact_lock_shared(7313, 3) THEN
    PERFORM pg_notify('tickwright_outbox', '');
  END IF;
  RETURN NULL;
END $$;

-- A claim takes a job that has no owner; every other change of a status but a cancellation is asked about.
CREATE FUNCTION tickwright.refuse_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NOT tickwright.is_ours() THEN
    RAISE EXCEPTION 'job_status_reserved: job % cannot be set to %', OLD.id, NEW.status
      USING ERRCODE = 'insufficient_privilege', HINT = 'Only ''cancelled'' can be written; Tickwright writes every other status.';
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER scheduled_tasks_allowed BEFORE UPDATE OF status ON tickwright.scheduled_tasks FOR EACH ROW
  WHEN ((NEW.owner IS NULL OR OLD.owner IS NOT NULL) AND NEW.status <> OLD.status AND NEW.status <> 'cancelled')
  EXECUTE FUNCTION tickwright.refuse_status();

-- A caller's search_path cannot change what these decide.
ALTER FUNCTION tickwright.ring_outbox() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION tickwright.refuse_status() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION tickwright.guard_held_job() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION tickwright.reset_retry() SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION tickwright.entity_changed() SET search_path = pg_catalog, pg_temp;

-- What the triggers of an INSERT and an UPDATE write beyond the row itself is written with the owner's rights. A trigger fires without the
-- right to execute its function; with that right anybody could attach it to a table of their own.
ALTER FUNCTION tickwright.claim_job_key() SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION tickwright.free_job_key() SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION tickwright.retire_job() SECURITY DEFINER SET search_path = pg_catalog, pg_temp;
REVOKE EXECUTE ON FUNCTION tickwright.claim_job_key(), tickwright.free_job_key(), tickwright.retire_job(), tickwright.register_tracker(),
                           tickwright.change_tracker(), tickwright.forget_tracker() FROM PUBLIC;

-- Two processes at midnight take turns by a row, which nobody locks without the right to change it; any user may hold an advisory lock.
CREATE OR REPLACE FUNCTION tickwright.ensure_history(at timestamptz) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  name text := tickwright.history_table(at);
BEGIN
  IF to_regclass('tickwright.' || name) IS NULL THEN
    PERFORM FROM tickwright.installation FOR UPDATE;
    IF to_regclass('tickwright.' || name) IS NULL THEN
      EXECUTE format('CREATE TABLE tickwright.%I (PRIMARY KEY (id)) INHERITS (tickwright.scheduled_tasks)', name);
      EXECUTE format('CREATE TRIGGER final BEFORE UPDATE ON tickwright.%I FOR EACH ROW '
                     'EXECUTE FUNCTION tickwright.guard_finished_job()', name);
    END IF;
  END IF;
  RETURN name;
END $$;

------------------------------------------------------------------------------------------------ roles that use plain SQL only
CREATE TABLE tickwright.app_roles (
  name       text        PRIMARY KEY,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE tickwright.app_roles IS
  'Roles of tickwright roles create app. Each tickwright migrate sets their rights again, as that release has them.';

CREATE VIEW tickwright.app_rights AS
SELECT r.relation, r.privilege, string_to_array(r.columns, ' ') AS columns
  FROM (VALUES
    ('scheduled_tasks', 'SELECT', NULL),
    ('scheduled_tasks', 'INSERT', 'execute_at task_type payload priority max_attempts timeout_ms expires_at idempotency_key '
                                  'request_digest traceparent'),
    ('scheduled_tasks', 'UPDATE', 'status execute_at'),
    ('scheduled_tasks_dead', 'SELECT', NULL),
    ('job_keys', 'SELECT', NULL),
    ('task_types', 'SELECT', 'name timeout_ms max_attempts retry_base_ms retry_factor retry_cap_ms final_statuses concurrency rate_per_s '
                             'keep_history paused_at gone_at version created_at updated_at'),
    ('outbox', 'SELECT', 'id'),
    ('outbox', 'INSERT', 'destination key payload headers'),
    ('shipment_polling_tracker', 'SELECT', NULL),
    ('shipment_polling_tracker', 'INSERT', 'account_id partner external_id status created_at last_polled_at tracking_until'),
    ('shipment_polling_tracker', 'UPDATE', 'status tracking_until'),
    ('shipment_polling_tracker', 'DELETE', NULL),
    ('entities', 'SELECT', NULL),
    ('entities', 'INSERT', 'code party is_polling_enabled polling_enabled_modules partner'),
    ('entities', 'UPDATE', 'party is_polling_enabled polling_enabled_modules partner'),
    ('entities', 'DELETE', NULL),
    ('modules', 'SELECT', NULL),
    ('fanout_cursors', 'SELECT', NULL)
  ) AS r (relation, privilege, columns);
COMMENT ON VIEW tickwright.app_rights IS 'What a role of tickwright roles create app may do; columns is NULL where a right is on all of them.';

CREATE VIEW tickwright.granted_rights AS
SELECT n.nspname::text AS schema, g.*, CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(g.grantee)::text END AS role
  FROM pg_namespace n
 CROSS JOIN LATERAL (
   SELECT c.relname::text AS relation, NULL::text AS attribute, a.privilege_type AS privilege, a.grantee, c.relowner AS owner
     FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS a WHERE c.relnamespace = n.oid
   UNION ALL
   SELECT c.relname, t.attname, a.privilege_type, a.grantee, c.relowner
     FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid CROSS JOIN LATERAL aclexplode(t.attacl) AS a WHERE c.relnamespace = n.oid
   UNION ALL
   SELECT NULL, NULL, a.privilege_type, a.grantee, d.defaclrole
     FROM pg_default_acl d CROSS JOIN LATERAL aclexplode(d.defaclacl) AS a
    WHERE d.defaclnamespace = n.oid AND d.defaclobjtype IN ('r', 'S', 'f')
   UNION ALL
   SELECT NULL, 'schema', a.privilege_type, a.grantee, n.nspowner FROM aclexplode(n.nspacl) AS a
 ) AS g
 WHERE n.nspname = 'tickwright' AND g.grantee <> g.owner;
COMMENT ON VIEW tickwright.granted_rights IS
  'Rights that roles beside the owners have: on a relation, an attribute of it, the schema, or (no relation) what later releases create.';

CREATE FUNCTION tickwright.app_role_statements(wanted text) RETURNS SETOF text LANGUAGE sql STABLE AS $$
  SELECT DISTINCT format('REVOKE ALL ON tickwright.%I FROM %I', g.relation, wanted)
    FROM tickwright.granted_rights g WHERE g.role = wanted AND g.relation IS NOT NULL AND pg_has_role(g.owner, 'USAGE')
  UNION ALL
  SELECT DISTINCT format('ALTER DEFAULT PRIVILEGES FOR ROLE %I IN SCHEMA tickwright REVOKE ALL ON %s FROM %I',
                         pg_get_userbyid(g.owner), k.kind, wanted)
    FROM tickwright.granted_rights g CROSS JOIN (VALUES ('TABLES'), ('SEQUENCES'), ('FUNCTIONS')) AS k (kind)
   WHERE g.role = wanted AND g.relation IS NULL AND g.attribute IS NULL AND pg_has_role(g.owner, 'USAGE')
  UNION ALL
  SELECT format('REVOKE CREATE ON SCHEMA tickwright FROM %I', wanted)
  UNION ALL
  SELECT format('GRANT USAGE ON SCHEMA tickwright TO %I', wanted)
  UNION ALL
  SELECT format('GRANT %s%s ON tickwright.%I TO %I', r.privilege, ' (' || array_to_string(r.columns, ', ') || ')', r.relation, wanted)
    FROM tickwright.app_rights r
$$;
COMMENT ON FUNCTION tickwright.app_role_statements(text) IS
  'What gives a role the rights in app_rights, and takes from it every other one in this schema.';

CREATE FUNCTION tickwright.grant_app_role(wanted text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  statement text;
BEGIN
  FOR statement IN SELECT * FROM tickwright.app_role_statements(wanted) LOOP
    EXECUTE statement;
  END LOOP;
  INSERT INTO tickwright.app_roles (name) VALUES (wanted) ON CONFLICT DO NOTHING;
END $$;
COMMENT ON FUNCTION tickwright.grant_app_role(text) IS 'Carry out app_role_statements, and again at each tickwright migrate.';

CREATE FUNCTION tickwright.grant_app_roles() RETURNS void LANGUAGE sql AS $$
  SELECT tickwright.grant_app_role(a.name) FROM tickwright.app_roles a JOIN pg_roles r ON r.rolname = a.name
$$;
REVOKE EXECUTE ON FUNCTION tickwright.grant_app_role(text), tickwright.grant_app_roles() FROM PUBLIC;
