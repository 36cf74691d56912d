-- What the outbox relay needs, and the transport inside PostgreSQL. Forward on a live system: it only creates.

------------------------------------------------------------------------------------------------ the relay
-- One lane per destination, so that a dead destination costs the others one index probe. Within a lane: new
-- rows, then rows that were tried before. The hash keeps a destination of 2,048 characters out of the index.
CREATE INDEX outbox_lane ON tickwright.outbox (hashtextextended(destination, 0), least(attempts, 1), next_at, id);

COMMENT ON COLUMN tickwright.outbox.fence IS 'The relay lease''s fence under which this row was last written.';
COMMENT ON COLUMN tickwright.outbox.next_at IS 'Not sent before; moved ahead by a failed attempt.';

-- The outbox's doorbell: silent while a relay is awake, see ring_doorbell.
CREATE FUNCTION tickwright.ring_outbox() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (SELECT FROM new_rows WHERE next_at <= clock_timestamp() + interval '1 second')
     AND NOT pg_try_advisory_xact_lock_shared(7313, 3) THEN
    PERFORM pg_notify('tickwright_outbox', '');
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER outbox_inserted AFTER INSERT ON tickwright.outbox
  REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION tickwright.ring_outbox();

CREATE INDEX outbox_dead_at ON tickwright.outbox_dead (died_at);

------------------------------------------------------------------------------------------------ in-PostgreSQL transport
-- One row is one message of one topic; competing consumers share a topic. A message that is taken stays 'ready' with
-- available_at in the future: that instant is the lease, so a consumer that dies gives its messages back by doing
-- nothing.
CREATE TABLE tickwright.messages (
  seq          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  topic        text        NOT NULL CHECK (length(topic) BETWEEN 1 AND 255),
  message_id   text        NOT NULL CHECK (length(message_id) BETWEEN 1 AND 255),
  key          text,
  headers      jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(headers) = 'object'),
  content_type text        NOT NULL DEFAULT 'application/json',
  payload      bytea       NOT NULL,
  status       text        NOT NULL DEFAULT 'ready' CHECK (status IN ('ready', 'done', 'dead')),
  available_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  deliveries   integer     NOT NULL DEFAULT 0,
  fence        bigint      NOT NULL DEFAULT 0,
  error        text        CHECK (length(error) <= 1000),
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at  timestamptz,
  CONSTRAINT messages_once UNIQUE (topic, message_id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX messages_ready    ON tickwright.messages (topic, available_at, seq) WHERE status = 'ready';
CREATE INDEX messages_finished ON tickwright.messages (topic, finished_at)       WHERE status <> 'ready';

COMMENT ON TABLE  tickwright.messages IS 'Messages of the in-PostgreSQL transport; finished ones stay until purged, so that a resend is no second message.';
COMMENT ON COLUMN tickwright.messages.available_at IS 'Not taken before; moved ahead by a lease, a delay after a nack, or the sender.';
COMMENT ON COLUMN tickwright.messages.deliveries IS 'Times taken and not released.';
COMMENT ON COLUMN tickwright.messages.fence IS 'Rises with every take, nack and release; a write with an older one changes nothing.';
