-- name: revision
-- The revision that this database's schema has. Small: one row.
SELECT version_num FROM tickwright.schema_version;

-- name: installation
-- What no two installations share. Other secrets are made of it, so it is shown to nobody.
SELECT id::text FROM tickwright.installation;
