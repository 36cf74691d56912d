-- name: attach
-- One database file, which nobody can write through this connection; {path} is quoted.
ATTACH {path} AS source (READ_ONLY); USE source

-- name: view_csv
-- A file of the folder under its name; {name} and {path} are quoted.
CREATE TEMP VIEW {name} AS FROM read_csv({path})

-- name: view_ndjson
-- A file of the folder under its name, a JSON object in each line.
CREATE TEMP VIEW {name} AS FROM read_json({path}, format = 'newline_delimited')

-- name: view_json
-- A file of the folder under its name, a JSON array of objects.
CREATE TEMP VIEW {name} AS FROM read_json({path}, format = 'array')

-- name: view_parquet
-- A file of the folder under its name.
CREATE TEMP VIEW {name} AS FROM read_parquet({path})

-- name: lock
-- Instants in UTC; nothing beyond {folders}, nothing of the program's variables, and no way back.
SET TimeZone = 'UTC'; SET allowed_directories = {folders};
SET enable_external_access = false; SET lock_configuration = true

-- name: describe
-- The columns of a query, without running it.
SELECT * FROM (
{query}
) AS q LIMIT 0

-- name: read
-- The rows of a query, where {columns} spells what Python has no exact word for.
SELECT {columns} FROM (
{query}
) AS q({names})
