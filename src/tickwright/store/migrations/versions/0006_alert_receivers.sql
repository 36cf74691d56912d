-- Who hears of alerts, and the secrets that sign for it. Forward on a live system: it only creates.
CREATE TABLE tickwright.alert_receivers (
  name         varchar(50) COLLATE "C" PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.-]*$'),
  url          text        NOT NULL CHECK (length(url) BETWEEN 1 AND 2048),
  severity_min text        NOT NULL DEFAULT 'info' CHECK (severity_min IN ('info', 'warning', 'critical')),
  rules        text[]      CHECK (cardinality(rules) BETWEEN 1 AND 100),
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE tickwright.alert_receivers IS
  'Who is told of alerts that fire and are resolved: outbox rows to alert:NAME, which the relay sends signed to the url of that time.';
COMMENT ON COLUMN tickwright.alert_receivers.rules IS 'Only these rules; NULL is every rule.';

CREATE TABLE tickwright.alert_receiver_secrets (
  id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  receiver   varchar(50) COLLATE "C" NOT NULL REFERENCES tickwright.alert_receivers ON DELETE CASCADE,
  secret     text        NOT NULL CHECK (secret LIKE 'whsec\_%'),
  created_at timestamptz NOT NULL DEFAULT now(),
  retires_at timestamptz
);
CREATE INDEX alert_receiver_secrets_receiver ON tickwright.alert_receiver_secrets (receiver, id);
COMMENT ON TABLE tickwright.alert_receiver_secrets IS 'Standard Webhooks secrets per receiver; several while one is being rotated.';
