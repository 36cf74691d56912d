-- Trackers on wheels: accounts, partners, slots, trackers, what is on its way, and what was polled. See ADR-0013.
-- Forward on a live system: it only creates.

------------------------------------------------------------------------------------------------ accounts and partners
CREATE TABLE tickwright.polling_schedule_config (
  account_id               text        PRIMARY KEY CHECK (length(account_id) BETWEEN 1 AND 200),
  polling_interval_minutes integer     NOT NULL DEFAULT 120 CHECK (polling_interval_minutes BETWEEN 1 AND 10080),
  max_age_days             integer     NOT NULL DEFAULT 60  CHECK (max_age_days BETWEEN 1 AND 3650),
  account_no               integer     NOT NULL GENERATED ALWAYS AS IDENTITY UNIQUE,
  placed_interval_minutes  integer     NOT NULL,
  stands_on                integer[]   NOT NULL DEFAULT '{}',
  polls_per_slice_max      integer     CHECK (polls_per_slice_max BETWEEN 1 AND 1000000),
  freshness_objective      float8      NOT NULL DEFAULT 0.99 CHECK (freshness_objective BETWEEN 0.5 AND 0.9999),
  paused_at                timestamptz,
  promised_since           timestamptz NOT NULL DEFAULT clock_timestamp(),
  created_at               timestamptz NOT NULL DEFAULT now(),
  updated_at               timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tickwright.polling_schedule_config IS 'How often each account is polled; an account without a row gets one with the defaults.';
COMMENT ON COLUMN tickwright.polling_schedule_config.placed_interval_minutes IS
  'The interval by which all its trackers were placed last; it follows the other when the corrector has moved them all.';
COMMENT ON COLUMN tickwright.polling_schedule_config.stands_on IS
  'Other intervals on whose wheels trackers of it may still stand: it may have been changed again before all had moved.';

COMMENT ON COLUMN tickwright.polling_schedule_config.polls_per_slice_max IS
  'How many of its trackers are polled in five minutes; the others'' polls are deferred, by turns. NULL: no cap.';
COMMENT ON COLUMN tickwright.polling_schedule_config.freshness_objective IS
  'The share of its polls that has to be made within 1.1 intervals of the one before; what may be missed is the error budget.';

CREATE FUNCTION tickwright.begin_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.placed_interval_minutes := NEW.polling_interval_minutes;
  RETURN NEW;
END $$;
CREATE TRIGGER polling_schedule_config_new BEFORE INSERT ON tickwright.polling_schedule_config
  FOR EACH ROW EXECUTE FUNCTION tickwright.begin_account();

CREATE FUNCTION tickwright.change_interval() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.stands_on := ARRAY (
    SELECT DISTINCT wheel FROM unnest(OLD.stands_on || OLD.placed_interval_minutes || OLD.polling_interval_minutes) AS wheel
     WHERE wheel <> NEW.polling_interval_minutes);
  RETURN NEW;
END $$;
CREATE TRIGGER polling_schedule_config_changed BEFORE UPDATE OF polling_interval_minutes ON tickwright.polling_schedule_config
  FOR EACH ROW WHEN (OLD.polling_interval_minutes <> NEW.polling_interval_minutes)
  EXECUTE FUNCTION tickwright.change_interval();

CREATE TABLE tickwright.partners (
  name           text        PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]{0,49}$'),
  partner_no     smallint    NOT NULL GENERATED ALWAYS AS IDENTITY UNIQUE,
  settings       jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(settings) = 'object'),
  paused_at      timestamptz,
  promised_since timestamptz NOT NULL DEFAULT clock_timestamp(),
  created_at     timestamptz NOT NULL DEFAULT now(),
  updated_at     timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tickwright.partners IS 'Whom we poll; the limits that everybody keeps together are in settings.';

-- Since when an account's and a partner's polls are promised as they are now: earlier turns are not judged.
CREATE FUNCTION tickwright.promise_anew() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.promised_since := clock_timestamp();
  NEW.updated_at := clock_timestamp();
  RETURN NEW;
END $$;
CREATE TRIGGER polling_schedule_config_promised BEFORE UPDATE ON tickwright.polling_schedule_config
  FOR EACH ROW WHEN ((OLD.polling_interval_minutes, OLD.polls_per_slice_max, OLD.paused_at IS NULL) IS DISTINCT FROM
                     (NEW.polling_interval_minutes, NEW.polls_per_slice_max, NEW.paused_at IS NULL))
  EXECUTE FUNCTION tickwright.promise_anew();
CREATE TRIGGER partners_promised BEFORE UPDATE ON tickwright.partners
  FOR EACH ROW WHEN ((OLD.settings->'quiet', OLD.paused_at IS NULL) IS DISTINCT FROM (NEW.settings->'quiet', NEW.paused_at IS NULL))
  EXECUTE FUNCTION tickwright.promise_anew();

------------------------------------------------------------------------------------------------ wheels
-- A wheel per interval, a slot per minute of it, a place per second: place = slot_id * 60 + second. The slot's row holds
-- the instant, so that to select a minute writes one row and no tracker's.
CREATE TABLE tickwright.poll_wheels (
  interval_minutes integer     PRIMARY KEY CHECK (interval_minutes BETWEEN 1 AND 10080),
  first_slot_id    integer     NOT NULL UNIQUE,
  judged_until     timestamptz NOT NULL DEFAULT date_trunc('minute', clock_timestamp())
) WITH (fillfactor = 50);
COMMENT ON COLUMN tickwright.poll_wheels.judged_until IS 'The last minute whose turn was judged fresh or stale, per account.';

CREATE TABLE tickwright.poll_slots (
  slot_id          integer     PRIMARY KEY,
  interval_minutes integer     NOT NULL REFERENCES tickwright.poll_wheels,
  next_due_at      timestamptz NOT NULL,
  prev_due_at      timestamptz,
  missed_due_at    timestamptz
) WITH (fillfactor = 25);
COMMENT ON COLUMN tickwright.poll_slots.next_due_at IS 'The minute for which it is selected next; rises by the interval.';
COMMENT ON COLUMN tickwright.poll_slots.missed_due_at IS
  'The last turn that passed while nobody selected; the catch-up makes it good, and stands for all that were missed before it.';

-- The n-th place of a sequence that is nearly even after any number of steps, whatever comes between: multiples of the
-- golden ratio, of which the seconds of the wheel take the fraction. Each partner's sequence begins somewhere else.
-- -1640531527 is 2^32 divided by the golden ratio, as a signed number, so that the product stays within bigint.
CREATE FUNCTION tickwright.place_of(first_slot_id integer, interval_minutes integer, partner_no smallint, n bigint)
RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (first_slot_id * 60
        + ((((n + partner_no::bigint * 7919) & 4294967295) * -1640531527 & 4294967295) * (interval_minutes * 60) >> 32))::integer;

CREATE TABLE tickwright.poll_places (
  partner_no       smallint NOT NULL,
  interval_minutes integer  NOT NULL,
  taken            bigint   NOT NULL DEFAULT 0,
  PRIMARY KEY (partner_no, interval_minutes)
) WITH (fillfactor = 25);
COMMENT ON TABLE tickwright.poll_places IS 'How many places of a sequence were given away; the next tracker gets the next one.';

------------------------------------------------------------------------------------------------ trackers
CREATE SEQUENCE tickwright.tracker_ids AS bigint;

CREATE TABLE tickwright.trackers (
  id             bigint      PRIMARY KEY,
  created_at     timestamptz NOT NULL,
  tracking_until timestamptz NOT NULL,
  last_polled_at timestamptz,
  status_at      timestamptz,
  skip_until     timestamptz,
  placed_at      timestamptz,
  ended_at       timestamptz,
  account_no     integer     NOT NULL,
  place          integer,
  partner_no     smallint    NOT NULL,
  status         varchar(100) COLLATE "C" NOT NULL,
  external_id    varchar(200) COLLATE "C" NOT NULL,
  events         jsonb
) WITH (fillfactor = 90, toast_tuple_target = 256, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
CREATE INDEX trackers_place ON tickwright.trackers (place) WHERE place IS NOT NULL;
CREATE UNIQUE INDEX trackers_external ON tickwright.trackers (external_id, partner_no);
CREATE INDEX trackers_account ON tickwright.trackers (account_no);
COMMENT ON COLUMN tickwright.trackers.place IS 'slot_id * 60 + second; NULL when it is polled no more.';
COMMENT ON COLUMN tickwright.trackers.last_polled_at IS
  'As of the last write of this row; the ledger poll_done knows better, and the view shows both together.';
COMMENT ON COLUMN tickwright.trackers.status_at IS 'When the status came to be, as its source says; older news is stale.';
COMMENT ON COLUMN tickwright.trackers.skip_until IS 'Not selected for a slot before: somebody else brought news.';
COMMENT ON COLUMN tickwright.trackers.placed_at IS
  'When it came to its place, where that was later than created_at: it is not late for turns before.';
COMMENT ON COLUMN tickwright.trackers.events IS
  'The last ten scan events that polls brought, {at, text}, newest last. More than a few lie beside the row, which stays narrow.';

-- Registered and not yet placed. The registrar moves rows on, so that a tracker's row is written once, with its place.
CREATE TABLE tickwright.tracker_intake (
  id             bigint       PRIMARY KEY DEFAULT nextval('tickwright.tracker_ids'),
  account_no     integer      NOT NULL,
  partner_no     smallint     NOT NULL,
  status         varchar(100) COLLATE "C" NOT NULL DEFAULT 'registered',
  external_id    varchar(200) COLLATE "C" NOT NULL,
  created_at     timestamptz  NOT NULL DEFAULT now(),
  tracking_until timestamptz  NOT NULL,
  status_at      timestamptz,
  skip_until     timestamptz,
  registered_at  timestamptz  NOT NULL DEFAULT clock_timestamp(),
  last_polled_at timestamptz,
  UNIQUE (external_id, partner_no)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
COMMENT ON COLUMN tickwright.tracker_intake.status_at IS 'As in trackers: news may come before the tracker has its place.';
COMMENT ON COLUMN tickwright.tracker_intake.registered_at IS 'When it came; created_at may be copied from somewhere else.';

-- Which news came already: the sender's ids of the last week. Whoever writes a row deletes two old ones.
CREATE TABLE tickwright.tracker_events (
  tracker_id  bigint      NOT NULL,
  event_id    text        NOT NULL CHECK (length(event_id) BETWEEN 1 AND 200),
  received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tracker_id, event_id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX tracker_events_age ON tickwright.tracker_events (received_at);
COMMENT ON TABLE tickwright.tracker_events IS 'Ids of news that somebody sent for a tracker, so that the same news twice is one.';

------------------------------------------------------------------------------------------------ on the way
CREATE TABLE tickwright.scheduler_outbox (
  id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  release_at   timestamptz NOT NULL,
  due_at       timestamptz NOT NULL,
  slot_id      integer     NOT NULL,
  partner_no   smallint    NOT NULL,
  shard        smallint    NOT NULL DEFAULT 0,
  ids          bigint[]    NOT NULL,
  account_nos  integer[]   NOT NULL,
  external_ids text[]      NOT NULL,
  batch_no     bigint
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
ALTER TABLE tickwright.scheduler_outbox -- written and read once: packing them costs more than it spares
  ALTER ids SET STORAGE EXTERNAL, ALTER account_nos SET STORAGE EXTERNAL, ALTER external_ids SET STORAGE EXTERNAL;
CREATE INDEX scheduler_outbox_waiting ON tickwright.scheduler_outbox (shard, release_at, id) WHERE batch_no IS NULL;
CREATE INDEX scheduler_outbox_batch ON tickwright.scheduler_outbox (shard, batch_no) WHERE batch_no IS NOT NULL;
COMMENT ON TABLE tickwright.scheduler_outbox IS
  'Polls that were selected and not yet published: one row per second, partner and at most a thousand trackers.';
COMMENT ON COLUMN tickwright.scheduler_outbox.due_at IS 'The due slot to the second: (tracker id, due_at) is the message id.';
COMMENT ON COLUMN tickwright.scheduler_outbox.release_at IS 'Published then; after due_at in a catch-up.';
COMMENT ON COLUMN tickwright.scheduler_outbox.batch_no IS 'Frozen into this batch: every attempt to publish it sends the same bytes.';

CREATE TABLE tickwright.poll_relays (
  shard        smallint PRIMARY KEY,
  batch_no     bigint   NOT NULL DEFAULT 0,
  published_no bigint   NOT NULL DEFAULT 0 CHECK (published_no <= batch_no),
  published_at timestamptz
) WITH (fillfactor = 25);
COMMENT ON TABLE tickwright.poll_relays IS 'Per shard: the newest batch number that was given, and the newest that is published.';

------------------------------------------------------------------------------------------------ ledgers
-- What became of each slot's turn, per partner: the slice ledger. due_at is the slot's minute.
CREATE TABLE tickwright.poll_slices (
  due_at           timestamptz NOT NULL,
  slot_id          integer     NOT NULL,
  partner_no       smallint    NOT NULL,
  interval_minutes integer     NOT NULL,
  selected         integer     NOT NULL,
  skipped          integer     NOT NULL DEFAULT 0,
  deferred         integer     NOT NULL DEFAULT 0,
  published        integer     NOT NULL DEFAULT 0,
  polled           integer     NOT NULL DEFAULT 0,
  late             integer     NOT NULL DEFAULT 0,
  superseded       integer     NOT NULL DEFAULT 0,
  coalesced        boolean     NOT NULL DEFAULT false,
  loads            integer[],
  PRIMARY KEY (due_at, slot_id, partner_no)
) WITH (fillfactor = 50);
COMMENT ON COLUMN tickwright.poll_slices.loads IS
  'Trackers of the partner in each ten seconds of the slot''s minute, as this turn counted them; moves correct it.';
COMMENT ON COLUMN tickwright.poll_slices.deferred IS 'Left to a later turn, because their account has had its polls of these five minutes.';
COMMENT ON COLUMN tickwright.poll_slices.coalesced IS 'This turn was missed and is made good by a later one.';

-- Which polls are done. Append only; a slot's rows are deleted three turns and ten minutes later. Also the consumers' inbox: an id that is
-- here under its due_at is done, whatever message says so again.
CREATE TABLE tickwright.poll_done (
  slot_id    integer     NOT NULL,
  due_at     timestamptz NOT NULL,
  partner_no smallint    NOT NULL,
  done_at    timestamptz NOT NULL,
  ids        bigint[]    NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX poll_done_due ON tickwright.poll_done (slot_id, due_at);

------------------------------------------------------------------------------------------------ caps and freshness
-- Where a capped account's trackers of a slot take turns: how many its last turn wanted, and behind whom the next begins.
CREATE TABLE tickwright.poll_caps (
  slot_id     integer NOT NULL,
  account_no  integer NOT NULL,
  wanted      integer NOT NULL,
  after_place integer,
  after_id    bigint,
  PRIMARY KEY (slot_id, account_no)
) WITH (fillfactor = 70);
COMMENT ON TABLE tickwright.poll_caps IS
  'Per slot and capped account: how many trackers its last turn wanted, and the last one that was polled while others were left.';

CREATE TABLE tickwright.poll_cap_slices (
  slice_at   timestamptz NOT NULL,
  account_no integer     NOT NULL,
  polls      integer     NOT NULL,
  PRIMARY KEY (slice_at, account_no)
) WITH (fillfactor = 70);
COMMENT ON TABLE tickwright.poll_cap_slices IS 'How many polls of a capped account are released within five minutes, whatever turns they come from.';

-- How fresh accounts were kept: in slices of five minutes for as long as their interval and two hours, then in days.
CREATE TABLE tickwright.account_freshness (
  account_no integer     NOT NULL,
  minutes    integer     NOT NULL CHECK (minutes IN (5, 1440)),
  from_at    timestamptz NOT NULL,
  keep_until timestamptz NOT NULL,
  polls      bigint      NOT NULL,
  fresh      bigint      NOT NULL CHECK (fresh <= polls),
  lag        float8      NOT NULL,
  PRIMARY KEY (account_no, minutes, from_at)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX account_freshness_keep ON tickwright.account_freshness (minutes, keep_until);
COMMENT ON TABLE tickwright.account_freshness IS
  'Turns that came due, per account, and how many of them were polled within a tenth of the interval behind their second.';
COMMENT ON COLUMN tickwright.account_freshness.lag IS
  'The greatest age of a tracker at its poll, or when its poll was given up on, in intervals: 1 for one that is polled at its second.';

CREATE TABLE tickwright.account_lags (
  account_no       integer     PRIMARY KEY,
  interval_minutes integer     NOT NULL,
  due_at           timestamptz NOT NULL,
  polls            bigint      NOT NULL,
  fresh            bigint      NOT NULL,
  lag              float8      NOT NULL,
  stale_since      timestamptz
) WITH (fillfactor = 50);
COMMENT ON TABLE tickwright.account_lags IS
  'Per account its last interval up to the last minute that was judged, and since when more of it is stale than its objective allows.';

CREATE VIEW tickwright.judged_accounts AS
SELECT c.account_id, c.paused_at, l.*
  FROM tickwright.account_lags l JOIN tickwright.polling_schedule_config c USING (account_no)
 WHERE l.due_at > clock_timestamp() - l.interval_minutes * interval '72 seconds' - interval '10 minutes';
COMMENT ON VIEW tickwright.judged_accounts IS 'Lags that are not out of date: an account with trackers is judged at least once an interval.';

------------------------------------------------------------------------------------------------ the document's table
-- shipment_polling_tracker reads as the source document has it, and a plain INSERT registers a tracker of any entity.
CREATE VIEW tickwright.shipment_polling_tracker AS
SELECT t.id, c.account_id, p.name AS partner, t.status::text AS status, t.created_at,
       greatest(t.last_polled_at, polled.at) AS last_polled_at,
       CASE WHEN t.ended_at IS NOT NULL OR c.paused_at IS NOT NULL OR p.paused_at IS NOT NULL OR due.at >= t.tracking_until THEN NULL
            ELSE due.at END AS next_poll_at,
       t.tracking_until, t.external_id::text AS external_id, t.ended_at
  FROM tickwright.trackers t
  JOIN tickwright.polling_schedule_config c ON c.account_no = t.account_no
  JOIN tickwright.partners p ON p.partner_no = t.partner_no
  LEFT JOIN tickwright.poll_slots s ON s.slot_id = t.place / 60
  LEFT JOIN LATERAL (
    SELECT CASE WHEN s.prev_due_at + t.place % 60 * interval '1 second' > now()
                 AND (t.skip_until IS NULL OR t.skip_until <= s.prev_due_at + t.place % 60 * interval '1 second')
                THEN s.prev_due_at + t.place % 60 * interval '1 second'
                ELSE first.at + ceil(greatest(0, coalesce(date_part('epoch', t.skip_until - first.at), 0))
                                     / (60.0 * s.interval_minutes)) * make_interval(mins => s.interval_minutes) END AS at
      FROM (SELECT s.next_due_at + t.place % 60 * interval '1 second' AS at) AS first) AS due ON true
  LEFT JOIN LATERAL (
    SELECT max(d.done_at) AS at FROM tickwright.poll_done d
     WHERE d.slot_id = s.slot_id AND d.partner_no = t.partner_no AND d.ids @> ARRAY[t.id]
       AND d.due_at IN (SELECT s.prev_due_at + t.place % 60 * interval '1 second' - back * make_interval(mins => s.interval_minutes)
                          FROM generate_series(0, 3) AS back)) AS polled ON true
UNION ALL
SELECT i.id, c.account_id, p.name, i.status::text, i.created_at, i.last_polled_at, NULL, i.tracking_until, i.external_id::text, NULL
  FROM tickwright.tracker_intake i
  JOIN tickwright.polling_schedule_config c ON c.account_no = i.account_no
  JOIN tickwright.partners p ON p.partner_no = i.partner_no;
COMMENT ON VIEW tickwright.shipment_polling_tracker IS
  'Trackers as the source document has them. INSERT (account_id, partner[, id, external_id, status, created_at, last_polled_at, tracking_until]) registers one.';

CREATE FUNCTION tickwright.refuse_tracker(code text, message text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '%: %', code, message USING ERRCODE = '23514', HINT = message;
END $$;

CREATE FUNCTION tickwright.account_number(wanted text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
  found integer;
BEGIN
  SELECT account_no INTO found FROM tickwright.polling_schedule_config WHERE account_id = wanted;
  IF found IS NULL THEN
    INSERT INTO tickwright.polling_schedule_config (account_id) VALUES (wanted) ON CONFLICT DO NOTHING;
    SELECT account_no INTO found FROM tickwright.polling_schedule_config WHERE account_id = wanted;
  END IF;
  RETURN found;
END $$;
COMMENT ON FUNCTION tickwright.account_number(text) IS 'The number of an account; one that nobody knew gets the default interval.';

CREATE FUNCTION tickwright.partner_number(wanted text) RETURNS smallint LANGUAGE plpgsql AS $$
DECLARE
  found smallint;
BEGIN
  SELECT partner_no INTO found FROM tickwright.partners WHERE name = wanted;
  IF found IS NULL THEN
    INSERT INTO tickwright.partners (name) VALUES (wanted) ON CONFLICT DO NOTHING;
    SELECT partner_no INTO found FROM tickwright.partners WHERE name = wanted;
  END IF;
  RETURN found;
END $$;
COMMENT ON FUNCTION tickwright.partner_number(text) IS 'The number of a partner; its trackers wait until somebody serves it.';

-- These three run with the owner's rights, so that a right on the view is enough; they name every schema.
CREATE FUNCTION tickwright.register_tracker() RETURNS trigger
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
  ELSIF NEW.id NOT BETWEEN 1 AND 9007199254740991 THEN
    PERFORM tickwright.refuse_tracker('invalid_tracker', 'id: 1 to 9007199254740991; leave it out to get the next one');
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
CREATE TRIGGER shipment_polling_tracker_insert INSTEAD OF INSERT ON tickwright.shipment_polling_tracker
  FOR EACH ROW EXECUTE FUNCTION tickwright.register_tracker();

-- Where news of trackers go: processes write it here when they start, for those who change trackers by plain SQL.
CREATE TABLE tickwright.poll_news (
  one         boolean PRIMARY KEY DEFAULT true CHECK (one),
  destination text    NOT NULL
);
INSERT INTO tickwright.poll_news (destination) VALUES ('pg:tickwright.poll-events');
COMMENT ON TABLE tickwright.poll_news IS 'The destination of news of trackers, as the process that started last has it. One row.';

CREATE FUNCTION tickwright.ends_trackers(status text, settings jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN CASE jsonb_typeof(settings->'terminal_statuses') WHEN 'array' THEN settings->'terminal_statuses' @> to_jsonb(status)
            ELSE settings->'terminal_statuses' IS NULL AND status = 'Delivered' END;
COMMENT ON FUNCTION tickwright.ends_trackers(text, jsonb) IS 'Whether a status ends a tracker, by its partner''s settings; as the API decides.';

CREATE FUNCTION tickwright.change_tracker() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (NEW.id, NEW.account_id, NEW.partner, NEW.created_at, NEW.external_id) IS DISTINCT FROM
     (OLD.id, OLD.account_id, OLD.partner, OLD.created_at, OLD.external_id)
     OR (NEW.last_polled_at, NEW.next_poll_at, NEW.ended_at) IS DISTINCT FROM (OLD.last_polled_at, OLD.next_poll_at, OLD.ended_at) THEN
    PERFORM tickwright.refuse_tracker('tracker_read_only', 'only status and tracking_until can be changed');
  END IF;
  -- Whoever only gives a tracker more time does not say its status again.
  IF (NEW.status <> OLD.status OR NEW.tracking_until = OLD.tracking_until)
     AND (SELECT tickwright.ends_trackers(NEW.status, p.settings) FROM tickwright.partners p WHERE p.name = OLD.partner) THEN
    WITH taken AS (DELETE FROM tickwright.tracker_intake WHERE id = OLD.id RETURNING *)
    INSERT INTO tickwright.trackers
           (id, created_at, tracking_until, last_polled_at, status_at, skip_until, ended_at, account_no, partner_no, status, external_id)
    SELECT id, created_at, CASE WHEN NEW.tracking_until = OLD.tracking_until THEN tracking_until ELSE NEW.tracking_until END,
           last_polled_at, clock_timestamp(), skip_until, clock_timestamp(), account_no, partner_no, NEW.status, external_id
      FROM taken;
    IF NOT FOUND THEN
      UPDATE tickwright.trackers
         SET status = NEW.status, status_at = clock_timestamp(), place = NULL,
             tracking_until = CASE WHEN NEW.tracking_until = OLD.tracking_until THEN tracking_until ELSE NEW.tracking_until END,
             ended_at = clock_timestamp(), last_polled_at = greatest(last_polled_at, OLD.last_polled_at)
       WHERE id = OLD.id AND ended_at IS NULL;
    END IF;
    IF FOUND THEN
      INSERT INTO tickwright.outbox (destination, key, payload)
      SELECT n.destination, OLD.id::text,
             jsonb_build_object('version', 1, 'event', 'ended', 'reason', 'terminal', 'tracker_id', OLD.id, 'account_id', OLD.account_id,
                                'partner', OLD.partner, 'external_id', OLD.external_id, 'status', NEW.status,
                                'previous_status', OLD.status, 'at', clock_timestamp(), 'event_id', NULL)
        FROM tickwright.poll_news n;
      RETURN NEW;
    END IF;
  END IF;
  -- Only what is changed: OLD is the caller's snapshot, and others may have brought news since.
  -- The intake first: a tracker goes from there to its place, so whoever looks in this order meets it.
  UPDATE tickwright.tracker_intake
     SET status = CASE WHEN NEW.status = OLD.status THEN status ELSE NEW.status END,
         tracking_until = CASE WHEN NEW.tracking_until = OLD.tracking_until THEN tracking_until ELSE NEW.tracking_until END
   WHERE id = OLD.id;
  IF NOT FOUND THEN
    -- The status of an ended tracker stays, as by REST: such an UPDATE changes no row, and says so.
    UPDATE tickwright.trackers
       SET status = CASE WHEN NEW.status = OLD.status THEN status ELSE NEW.status END,
           tracking_until = CASE WHEN NEW.tracking_until = OLD.tracking_until THEN tracking_until ELSE NEW.tracking_until END
     WHERE id = OLD.id AND (ended_at IS NULL OR NEW.status = OLD.status);
    IF NOT FOUND THEN
      RETURN NULL;
    END IF;
  END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER shipment_polling_tracker_update INSTEAD OF UPDATE ON tickwright.shipment_polling_tracker
  FOR EACH ROW EXECUTE FUNCTION tickwright.change_tracker();

CREATE FUNCTION tickwright.forget_tracker() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM tickwright.tracker_intake WHERE id = OLD.id;
  DELETE FROM tickwright.trackers WHERE id = OLD.id;
  RETURN OLD;
END $$;
CREATE TRIGGER shipment_polling_tracker_delete INSTEAD OF DELETE ON tickwright.shipment_polling_tracker
  FOR EACH ROW EXECUTE FUNCTION tickwright.forget_tracker();
