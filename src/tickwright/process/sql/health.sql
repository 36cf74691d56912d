-- name: ping
-- Check whether the database answers.
SELECT 1;
