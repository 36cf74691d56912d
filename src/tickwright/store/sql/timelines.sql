-- name: enter
-- Whether the database has another timeline than before; if so, no number of the old one is given out again. A row where it has, so that the
-- number of rows says it, in one round trip. Index: timelines_pkey.
WITH entered AS MATERIALIZED (SELECT tickwright.enter_timeline() AS change)
SELECT FROM entered WHERE change IS NOT NULL;

-- name: last_change
-- What changed last, for the log. Index: audit_pkey.
SELECT after::text FROM tickwright.audit WHERE action = 'database.timeline_changed' ORDER BY id DESC LIMIT 1;
