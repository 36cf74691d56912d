-- name: message_keys
-- The valid keys, the signing one first. Index: none, the table has a row or two.
SELECT key FROM tickwright.message_keys
 WHERE ends_at IS NULL OR ends_at > clock_timestamp()
 ORDER BY signs_from <= clock_timestamp() DESC, id DESC;

-- name: snapshot
-- The clock, every module's name and target, every partner's number and the keys of messages. Index: none, these tables are small.
SELECT extract(epoch FROM clock_timestamp())::float8 AS now_s,
       ARRAY(SELECT name FROM tickwright.modules ORDER BY name) AS modules,
       ARRAY(SELECT target FROM tickwright.modules ORDER BY name) AS targets,
       ARRAY(SELECT name FROM tickwright.partners ORDER BY name) AS partners,
       ARRAY(SELECT partner_no FROM tickwright.partners ORDER BY name) AS numbers,
       ARRAY({message_keys}) AS keys;
