-- name: list
-- All receivers, or the one named $1, and the number of their secrets in use; never a secret. Small: a row per receiver.
SELECT r.*, (SELECT count(*) FROM tickwright.alert_receiver_secrets s
              WHERE s.receiver = r.name AND (s.retires_at IS NULL OR s.retires_at > clock_timestamp())) AS signing_secrets
  FROM tickwright.alert_receivers r WHERE $1::text IS NULL OR r.name = $1 ORDER BY r.name LIMIT 1000;

-- name: count
-- The number of receivers. Puts are serialized, so that the bound holds. Small: a row per receiver.
SELECT count(*) FROM tickwright.alert_receivers;

-- name: lock_all
-- Serialize changes of receivers by the lock of a row; readers do not wait. A table lock would wait for every session with a weak one,
-- which needs no right. Small: one row, whatever the name $1.
SELECT FROM tickwright.installation WHERE $1::text IS NOT NULL FOR UPDATE;

-- name: put
-- Create or replace a receiver; waiting messages go to the new URL. Index: alert_receivers_pkey.
INSERT INTO tickwright.alert_receivers (name, url, severity_min, rules) VALUES ($1, $2, $3, $4::text[])
ON CONFLICT (name) DO UPDATE
   SET url = excluded.url, severity_min = excluded.severity_min, rules = excluded.rules, updated_at = clock_timestamp();

-- name: delete
-- Delete a receiver and its secrets. Index: alert_receivers_pkey.
DELETE FROM tickwright.alert_receivers WHERE name = $1;

-- name: delete_waiting
-- Delete a receiver's waiting messages. Index: outbox_lane.
DELETE FROM tickwright.outbox
 WHERE hashtextextended(destination, 0) = hashtextextended('alert:' || $1::text, 0) AND destination = 'alert:' || $1::text;

-- name: add_secret
-- Add a secret, in use from now on.
INSERT INTO tickwright.alert_receiver_secrets (receiver, secret) VALUES ($1, $2);

-- name: retire_secrets
-- Keep the present secrets in use beside a new one, for a while. Index: alert_receiver_secrets_receiver.
UPDATE tickwright.alert_receiver_secrets SET retires_at = least(retires_at, clock_timestamp() + $2::interval)
 WHERE receiver = $1;

-- name: drop_retired
-- Delete secrets that are no longer in use. Index: alert_receiver_secrets_receiver.
DELETE FROM tickwright.alert_receiver_secrets WHERE receiver = $1 AND retires_at <= clock_timestamp();

-- name: endpoints
-- The present URLs of these receivers, and their secrets in use, newest first. Indexes: alert_receivers_pkey,
-- alert_receiver_secrets_receiver.
SELECT r.name, r.url,
       ARRAY(SELECT s.secret FROM tickwright.alert_receiver_secrets s
              WHERE s.receiver = r.name AND (s.retires_at IS NULL OR s.retires_at > clock_timestamp())
              ORDER BY s.id DESC) AS secrets
  FROM tickwright.alert_receivers r WHERE r.name = ANY ($1::text[]);

-- name: notify
-- Write a message to every matching receiver for these alerts of a rule, which fired or were resolved. In the transaction that changed
-- them, so that each change is written once. Of alerts that fired together the first $2 are written, also when they are resolved; the last
-- one has the number of further ones. Small: a row per receiver. Index: alerts_pkey; alerts that fired together have ids close to each
-- other.
INSERT INTO tickwright.outbox (destination, key, payload)
SELECT 'alert:' || r.name, a.rule || '/' || a.subject,
       jsonb_build_object('version', 1, 'event', CASE a.state WHEN 'firing' THEN 'fired' ELSE 'resolved' END, 'alert_id', a.id,
                          'rule', a.rule, 'subject', a.subject, 'severity', a.severity, 'facts', a.facts,
                          'summary', a.summary || CASE WHEN a.more > 0 THEN ' And ' || a.more || ' more like this: see tickwright alerts.' ELSE '' END,
                          'at', CASE a.state WHEN 'firing' THEN a.fired_at ELSE a.resolved_at END)
       || CASE WHEN a.more > 0 THEN jsonb_build_object('more', a.more) ELSE '{}' END
  FROM (SELECT c.*, together.before,
               CASE WHEN c.state = 'firing' AND together.before = $2::integer - 1 THEN count(*) FILTER (WHERE c.state = 'firing') OVER () - $2::integer END AS more
          FROM tickwright.alerts c
         CROSS JOIN LATERAL (
           SELECT count(*) AS before FROM (SELECT FROM tickwright.alerts b
                                            WHERE b.id BETWEEN c.id - 1000 AND c.id - 1 AND b.rule = c.rule AND b.fired_at = c.fired_at
                                            ORDER BY b.id DESC LIMIT $2::integer) AS some_of_them) AS together
         WHERE c.id = ANY ($1::bigint[])) AS a
  JOIN tickwright.alert_receivers r
    ON (r.rules IS NULL OR a.rule = ANY (r.rules))
   AND array_position(ARRAY['info', 'warning', 'critical'], a.severity)
    >= array_position(ARRAY['info', 'warning', 'critical'], r.severity_min)
 WHERE a.before < $2::integer ORDER BY a.id, r.name;
