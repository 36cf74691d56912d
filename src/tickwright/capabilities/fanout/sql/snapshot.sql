-- name: snapshot
-- The clock, every module's name and every partner's number. Index: none, both tables are small.
SELECT extract(epoch FROM clock_timestamp())::float8 AS now_s,
       ARRAY(SELECT name FROM tickwright.modules ORDER BY name) AS modules,
       ARRAY(SELECT name FROM tickwright.partners ORDER BY name) AS partners,
       ARRAY(SELECT partner_no FROM tickwright.partners ORDER BY name) AS numbers;
