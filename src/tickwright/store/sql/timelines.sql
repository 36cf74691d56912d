-- name: enter
-- Whether the database has another timeline than before; if so, no number of the old one is given out again. Index: timelines_pkey.
SELECT tickwright.enter_timeline()::text;
