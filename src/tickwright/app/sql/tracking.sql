-- name: isolation
-- The isolation level of the caller's transaction. No table.
SELECT current_setting('transaction_isolation');
