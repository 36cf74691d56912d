-- name: enter
-- Check whether the database's timeline has changed; if so, no number of the old one is issued again. The number of rows is the answer, one if
-- it has changed, in one round trip. Index: timelines_pkey.
WITH entered AS MATERIALIZED (SELECT tickwright.enter_timeline() AS change)
SELECT FROM entered WHERE change IS NOT NULL;

-- name: last_change
-- The last change, for the log. Index: audit_pkey.
SELECT after::text FROM tickwright.audit WHERE action = 'database.timeline_changed' ORDER BY id DESC LIMIT 1;
