-- name: isolation
-- How isolated the caller's transaction is. No table.
SELECT current_setting('transaction_isolation');
