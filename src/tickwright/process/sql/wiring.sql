-- name: revision
-- The revision of this database's schema. Small: one row.
SELECT version_num FROM tickwright.schema_version;

-- name: installation
-- The id of this installation, different in each. Other secrets are derived from it, so it is never shown.
SELECT id::text FROM tickwright.installation;
