-- name: revision
-- The revision that this database's schema has. Small: one row.
SELECT version_num FROM tickwright.schema_version;
