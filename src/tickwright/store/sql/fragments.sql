-- name: lane
-- Every task type with a live job, and its priorities: one probe a lane, from each to the next, whatever its number of jobs. To be placed after
-- WITH RECURSIVE. It is text and not a function, so that PostgreSQL plans each statement as a whole. Index: scheduled_tasks_due.
lane AS (
  (SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t ORDER BY t.task_type, t.priority LIMIT 1)
  UNION ALL
  SELECT n.task_type, n.priority
    FROM lane l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE (t.task_type, t.priority) > (l.task_type, l.priority) ORDER BY t.task_type, t.priority LIMIT 1) AS n
);

-- name: runnable
-- The same for the task types that may run, whatever the number of others with jobs.
runnable AS (
  SELECT top.task_type, top.priority
    FROM tickwright.task_types k CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = k.name ORDER BY t.priority LIMIT 1) AS top
   WHERE k.paused_at IS NULL AND k.gone_at IS NULL
  UNION ALL
  SELECT n.task_type, n.priority
    FROM runnable l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = l.task_type AND t.priority > l.priority ORDER BY t.priority LIMIT 1) AS n
);

-- name: known
-- The same for registered task types in any state; the first lane of each comes before the second of any. Index: scheduled_tasks_due.
known AS (
  SELECT top.task_type, top.priority
    FROM tickwright.task_types k CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = k.name ORDER BY t.priority LIMIT 1) AS top
  UNION ALL
  SELECT n.task_type, n.priority
    FROM known l CROSS JOIN LATERAL (
      SELECT t.task_type, t.priority FROM ONLY tickwright.scheduled_tasks t
       WHERE t.task_type = l.task_type AND t.priority > l.priority ORDER BY t.priority LIMIT 1) AS n
);

-- name: claimable
-- The lanes in which claimed jobs can be: of registered task types in any state, and of a thousand others, because a type may be deleted while
-- its jobs run. The cost of releasing jobs does not grow with the number of unknown types.
{known}, claimable AS MATERIALIZED (
  SELECT * FROM known UNION (SELECT * FROM lane LIMIT 1000)
);

-- name: counted
-- The lanes that figures count: a thousand of registered types, and the first thousand of all by name. Every role that may insert jobs can invent
-- names, and those must not hide a registered type. Where more than a thousand lanes were walked, some may be left out.
{known}, walked AS MATERIALIZED (
  SELECT * FROM lane LIMIT 1001
), registered AS MATERIALIZED (
  SELECT * FROM known LIMIT 1000
), counted AS MATERIALIZED (
  SELECT * FROM registered UNION ALL (SELECT * FROM walked EXCEPT SELECT * FROM registered)
), cut AS MATERIALIZED (
  SELECT count(*) > 1000 AS cut FROM walked
);

-- name: lists
-- A thousand different lists of modules of enabled entities, one probe each: from the first list on, and from each module's name on. Every role
-- that may insert entities can invent lists, and those must not hide a module. To be placed after WITH RECURSIVE.
-- Index: entities_polled, of which the rows are not read; modules_pkey.
lists AS (
  SELECT top.list
    FROM (SELECT '' AS name UNION ALL SELECT m.name FROM tickwright.modules m UNION ALL SELECT lower(m.name) FROM tickwright.modules m) AS start
   CROSS JOIN LATERAL (
     SELECT e.polling_enabled_modules AS list FROM tickwright.entities e
      WHERE e.is_polling_enabled AND e.polling_enabled_modules >= start.name ORDER BY e.polling_enabled_modules LIMIT 1) AS top
  UNION
  SELECT n.list
    FROM lists l CROSS JOIN LATERAL (
      SELECT e.polling_enabled_modules AS list FROM tickwright.entities e
       WHERE e.is_polling_enabled AND e.polling_enabled_modules > l.list ORDER BY e.polling_enabled_modules LIMIT 1) AS n
), looked AS MATERIALIZED (
  SELECT list FROM lists LIMIT 1000
);

-- name: listed
-- The view listed_modules at a bounded cost: of those lists, the first 200 names of each, and a million entities in all.
{lists}, numbered AS MATERIALIZED (
  SELECT list, (SELECT count(*) FROM (SELECT FROM tickwright.entities e
                                       WHERE e.is_polling_enabled AND e.polling_enabled_modules = looked.list
                                       LIMIT (SELECT 1000000 / greatest(count(*), 1) FROM looked)) AS some_of_them) AS entities
    FROM looked
), listed AS MATERIALIZED (
  SELECT l.list, p.name, l.entities
    FROM numbered l
   CROSS JOIN LATERAL (SELECT DISTINCT btrim(few.part, E' \t\r\n\f\v') AS name
                         FROM (SELECT part FROM string_to_table(upper(l.list), ',') AS part LIMIT 200) AS few) AS p
   WHERE p.name <> ''
);

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
