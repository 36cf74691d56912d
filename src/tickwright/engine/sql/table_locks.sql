-- name: be_brief
-- Bound the transaction of the next query: it fails where the catalogues are locked.
SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '3s';

-- name: end_table_locks
-- End the sessions in table_lock (fragments.sql) that this database user may end, and return all of them. Catalogues only.
WITH {table_lock}
SELECT pid, role, quoted, relation, mode, quote_ident(current_user) AS me,
       CASE WHEN pg_has_role(role_oid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE') THEN pg_terminate_backend(pid) ELSE false END AS ended
  FROM table_lock ORDER BY pid;
