-- name: revision
-- The revision of this database's schema. Small: one row.
SELECT version_num FROM tickwright.schema_version;
