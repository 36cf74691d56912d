-- name: table_lock
-- Sessions that wait, and request or hold a lock that blocks writers of a relation of ours, although no statement of their role could use it: the
-- role is not a member of the owner of the table, the schema or the database, and has none of the rights of such locks. PostgreSQL takes the
-- lock of some statements before it checks rights. A session with the right, such as a migration, is not found; nor is one whose refusal is in
-- progress. To be placed after WITH. Catalogues only; pg_locks is read once.
locks AS MATERIALIZED (
  SELECT l.pid, l.relation, l.mode, l.locktype, bool_or(NOT l.granted) OVER (PARTITION BY l.pid) AS waits FROM pg_locks l
), table_lock AS MATERIALIZED (
  SELECT DISTINCT ON (a.pid) a.pid, a.usesysid AS role_oid, a.usename::text AS role, quote_ident(a.usename) AS quoted, c.relname::text AS relation, k.mode
    FROM locks k
    JOIN pg_class c ON c.oid = k.relation
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'tickwright'
    LEFT JOIN pg_index i ON i.indexrelid = c.oid
    JOIN pg_stat_activity a ON a.pid = k.pid
    JOIN pg_database d ON d.oid = a.datid AND d.datname = current_database()
   CROSS JOIN (SELECT 'UPDATE, DELETE, TRUNCATE, TRIGGER' || CASE WHEN current_setting('server_version_num')::integer >= 170000 THEN ', MAINTAIN' ELSE '' END
                 AS rights) AS r
   WHERE k.waits AND k.locktype = 'relation' AND k.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
     AND NOT (has_table_privilege(a.usesysid, coalesce(i.indrelid, c.oid), r.rights)
              OR has_any_column_privilege(a.usesysid, coalesce(i.indrelid, c.oid), 'REFERENCES')
              OR pg_has_role(a.usesysid, c.relowner, 'MEMBER')
              OR pg_has_role(a.usesysid, n.nspowner, 'MEMBER') OR pg_has_role(a.usesysid, d.datdba, 'MEMBER'))
   ORDER BY a.pid, c.relname
);
