-- name: statements
-- The statements that make $1 a role for plain SQL only, in order; $2: it may log in; $3: its password, as PostgreSQL stores it.
SELECT statement FROM (
  SELECT 1 AS step, format('CREATE ROLE %I', $1::text) AS statement WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)
  UNION ALL SELECT 2, format('ALTER ROLE %I LOGIN', $1) WHERE $2::boolean
  UNION ALL SELECT 3, format('ALTER ROLE %I PASSWORD %L', $1, $3::text) WHERE $3 IS NOT NULL
  UNION ALL SELECT 4, format('SELECT tickwright.grant_app_role(%L)', $1)
) AS steps ORDER BY step;

-- name: grants
-- The same, with every right written out instead of the call of the function that grants them.
SELECT s.statement
  FROM tickwright.app_role_statements($1::text) WITH ORDINALITY AS s (statement, n)
UNION ALL SELECT format('INSERT INTO tickwright.app_roles (name) VALUES (%L) ON CONFLICT DO NOTHING', $1);

-- name: power
-- Why the role $1 cannot be limited to fewer rights; NULL when it can, or does not exist.
SELECT CASE WHEN r.rolsuper THEN 'it is a superuser'
            WHEN r.rolcreaterole OR r.rolreplication OR r.rolbypassrls THEN 'it has CREATEROLE, REPLICATION or BYPASSRLS'
            WHEN pg_has_role(r.oid, n.nspowner, 'MEMBER') THEN 'it owns the schema tickwright, or is a member of the role that does'
       END AS because
  FROM pg_roles r, pg_namespace n WHERE r.rolname = $1 AND n.nspname = 'tickwright';

-- name: excess
-- Rights in the schema beyond app_rights, of roles that do not run Tickwright. Catalogues only.
SELECT g.role, g.privilege, coalesce(g.relation, CASE WHEN g.attribute IS NULL THEN 'tables of later releases' ELSE 'the schema' END) AS "on",
       CASE WHEN g.relation IS NOT NULL THEN string_agg(g.attribute, ', ' ORDER BY g.attribute) END AS columns
  FROM tickwright.granted_rights g
 WHERE NOT EXISTS (SELECT FROM tickwright.app_rights r
                    WHERE r.relation = g.relation AND r.privilege = g.privilege AND (r.columns IS NULL OR g.attribute = ANY (r.columns)))
   AND NOT (g.relation IS NULL AND g.attribute = 'schema' AND g.privilege = 'USAGE')
   AND NOT EXISTS (SELECT FROM pg_roles p
                    WHERE p.oid = g.grantee AND has_table_privilege(p.oid, 'tickwright.outbox', 'UPDATE')
                      AND has_table_privilege(p.oid, 'tickwright.workers', 'INSERT'))
 GROUP BY g.role, g.privilege, g.relation, g.attribute IS NULL
 ORDER BY 1, 3, 2 LIMIT 1000;

-- name: grant_again
-- Set the rights of all app roles to those of this release. Small: a row per role.
SELECT tickwright.grant_app_roles();

-- name: grant_with_revision
-- The same, in the transaction of a revision; revisions up to 0011 have no app roles.
DO $$ BEGIN
  IF to_regprocedure('tickwright.grant_app_roles()') IS NOT NULL THEN PERFORM tickwright.grant_app_roles(); END IF;
END $$;
