-- name: now
-- What an expression of a dry run calls now. No table.
SELECT clock_timestamp();
