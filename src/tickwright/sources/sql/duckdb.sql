-- name: spill
-- At most {bytes_max} bytes of what is spilled; the same in the configuration of a connection has no effect in DuckDB 2.0. DuckDB takes a program
-- without a file for a person at a terminal, and draws its progress.
SET max_temp_directory_size = '{bytes_max}B'; SET enable_progress_bar = false

-- name: attach
-- One database file, which nobody can write through this connection; {path} is quoted.
ATTACH {path} AS source (READ_ONLY); USE source

-- name: tree
-- The syntax tree of a query; it is parsed and nothing else.
SELECT json_serialize_sql(CAST($1 AS VARCHAR))

-- name: view_csv
-- A file of the folder under its name; each value is its text. Every option is given: one that DuckDB finds out drops lines that do not fit.
CREATE TEMP VIEW {name} AS FROM read_csv({path}, auto_detect = false, columns = {{columns}}, delim = {separator}, quote = '"', escape = '"', comment = '',
    header = true, skip = 0, allow_quoted_nulls = false, null_padding = false, ignore_errors = false, strict_mode = true, hive_partitioning = false)

-- name: view_json
-- A file of the folder under its name, an object in each line or one array of objects; {columns} hold every value of the file.
CREATE TEMP VIEW {name} AS FROM read_json({path}, format = {format}, records = true, columns = {{columns}}, ignore_errors = false, hive_partitioning = false)

-- name: json_names
-- The names of all objects in the order of the file, and the first object that is none or has a number that a double would change. One scan.
SELECT names, min(place) FILTER (NOT is_object OR number IS NOT NULL)
  FROM (SELECT json_keys(json) AS names, row_number() OVER () AS place, starts_with(CAST(json AS VARCHAR), '{') AS is_object, {inexact} AS number
          FROM read_json_objects({path}, format = {format}, hive_partitioning = false))
 GROUP BY names ORDER BY min(place)

-- name: json_inexact
-- The first number of an object that is not what it says when a double holds it. Texts are looked into first, because leaving them out is slow.
CASE WHEN len(list_filter(regexp_extract_all(CAST(json AS VARCHAR),
                  '[0-9][0-9.]{15,}(?:[eE][+-]?[0-9]+)?|[0-9][0-9.]*[eE][+-]?[0-9]{3,}|[:,\[\s-](?i:nan|inf)'), lambda number: {differs})) > 0
     THEN list_filter(regexp_extract_all(regexp_replace(CAST(json AS VARCHAR), '"(?:[^"\\]|\\.)*"', '""', 'g'),
                                         '[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|(?i:nan|inf)'), lambda number: {differs})[1] END

-- name: json_differs
-- Whether a number has a point or an exponent and its digits are not those of the double; whole numbers keep theirs. Most doubles are written as DuckDB
-- writes them, which is found at a tenth of the cost of comparing digits.
CASE WHEN CAST(TRY_CAST(number AS DOUBLE) AS VARCHAR) IS NOT DISTINCT FROM number THEN false
     ELSE regexp_matches(number, '[.eEnN]') AND {written} IS DISTINCT FROM {kept} END

-- name: json_digits
-- The digits that matter of a number: without point, exponent and zeros around them.
trim(replace(regexp_replace({number}, '[eE].*', ''), '.', ''), '0')

-- name: json_place
-- The number that is wrong in the object at a place; row_number() without ORDER BY counts as the file does.
SELECT number FROM (SELECT row_number() OVER () AS place, {inexact} AS number
                      FROM read_json_objects({path}, format = {format}, hive_partitioning = false)) WHERE place = $1 LIMIT 1

-- name: json_kinds
-- Which kinds of values each column has. One scan.
SELECT {kinds} FROM read_json({path}, format = {format}, records = true, columns = {{columns}}, hive_partitioning = false)

-- name: json_kind
-- Bits: 1 text, 2 nested, 4 boolean, 8 with a point or an exponent, whole with up to 15 digits 16, with 64 bits 32, with 128 bits 64, larger 128.
bit_or(CASE WHEN {c} IS NULL THEN 0 WHEN {c}[1] = '"' THEN 1 WHEN {c}[1] IN ('{', '[') THEN 2 WHEN {c}[1] IN ('t', 'f') THEN 4
            WHEN regexp_matches({c}, '[.eE]') THEN 8 WHEN length({c}) <= 15 THEN 16
            WHEN TRY_CAST({c} AS BIGINT) IS NOT NULL THEN 32 WHEN TRY_CAST({c} AS HUGEINT) IS NOT NULL THEN 64 ELSE 128 END)

-- name: view_parquet
-- A file of the folder under its name, with the types that it says itself.
CREATE TEMP VIEW {name} AS FROM read_parquet({path}, hive_partitioning = false)

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
