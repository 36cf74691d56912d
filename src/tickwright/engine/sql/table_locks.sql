-- name: be_brief
-- For the transaction of the next query: where the catalogues are locked, it gives up.
SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '3s';

-- name: end_table_locks
-- End what table_lock (fragments.sql) finds, where this database user may, and return all of it. Catalogues only.
WITH {table_lock}
SELECT pid, role, quoted, relation, mode, quote_ident(current_user) AS me,
       CASE WHEN pg_has_role(role_oid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE') THEN pg_terminate_backend(pid) ELSE false END AS ended
  FROM table_lock ORDER BY pid;
