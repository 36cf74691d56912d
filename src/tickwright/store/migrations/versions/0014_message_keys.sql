-- The keys that tasks of fan-out are signed with. Forward on a live system: a new table that old code does not know.

CREATE TABLE tickwright.message_keys (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key bytea NOT NULL DEFAULT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex') CHECK (length(key) = 32),
  signs_from timestamptz NOT NULL DEFAULT clock_timestamp(),
  ends_at timestamptz
);
COMMENT ON TABLE tickwright.message_keys IS
  'Keys of HMAC-SHA256 over tasks of fan-out: the newest one that has begun signs, every one that has not ended is believed. For the owner only.';
COMMENT ON COLUMN tickwright.message_keys.key IS 'From gen_random_uuid(), which PostgreSQL makes of strong random bytes: 244 random bits.';
COMMENT ON COLUMN tickwright.message_keys.signs_from IS 'A minute after it was made, so that every consumer has read it before.';
INSERT INTO tickwright.message_keys DEFAULT VALUES;

-- Whoever may read this table can sign, whoever may write it can bring a key: no default privilege reaches it.
DO $$
DECLARE
  granted text;
BEGIN
  FOR granted IN SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
                   FROM pg_class c, aclexplode(c.relacl) a
                  WHERE c.oid = 'tickwright.message_keys'::regclass AND a.grantee <> c.relowner LOOP
    EXECUTE format('REVOKE ALL ON tickwright.message_keys FROM %s', granted);
  END LOOP;
END $$;

CREATE FUNCTION tickwright.rotate_message_key() RETURNS void LANGUAGE sql AS $$
  DELETE FROM tickwright.message_keys WHERE ends_at < clock_timestamp();
  UPDATE tickwright.message_keys SET ends_at = clock_timestamp() + interval '2 days' WHERE ends_at IS NULL;
  INSERT INTO tickwright.message_keys (signs_from) VALUES (clock_timestamp() + interval '1 minute');
$$;
COMMENT ON FUNCTION tickwright.rotate_message_key() IS
  'Make a new key; the old one is believed for two days, longer than a window lives. It runs as its caller, who has to own the table.';
REVOKE ALL ON FUNCTION tickwright.rotate_message_key() FROM PUBLIC;
