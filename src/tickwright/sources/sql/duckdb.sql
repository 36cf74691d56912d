-- name: spill
-- Bound the spilled bytes; the same setting in a connection's configuration has no effect in DuckDB 2.0. Also disable the progress bar, which
-- DuckDB draws for a program without a file.
SET max_temp_directory_size = '{bytes_max}B'; SET enable_progress_bar = false

-- name: attach
-- Attach one database file read-only; {path} is quoted.
ATTACH {path} AS source (READ_ONLY); USE source

-- name: tree
-- The syntax tree of a query; the query is only parsed.
SELECT json_serialize_sql(CAST($1 AS VARCHAR))

-- name: view_csv
-- A CSV file as a view of texts. Every option is given: an option that DuckDB detects itself can drop lines that do not fit.
CREATE TEMP VIEW {name} AS FROM read_csv({path}, auto_detect = false, columns = {{columns}}, delim = {separator}, quote = '"', escape = '"', comment = '',
    header = true, skip = 0, allow_quoted_nulls = false, null_padding = false, ignore_errors = false, strict_mode = true, hive_partitioning = false)

-- name: view_json
-- A JSON file as a view: an object per line or one array of objects; {columns} hold every value of the file.
CREATE TEMP VIEW {name} AS FROM read_json({path}, format = {format}, records = true, columns = {{columns}}, ignore_errors = false, hive_partitioning = false)

-- name: json_names
-- The names of all objects in the file's order, and the first value that is no object or has a number that a double would change. One scan.
SELECT names, min(place) FILTER (NOT is_object OR number IS NOT NULL)
  FROM (SELECT json_keys(json) AS names, row_number() OVER () AS place, starts_with(CAST(json AS VARCHAR), '{') AS is_object, {inexact} AS number
          FROM read_json_objects({path}, format = {format}, hive_partitioning = false))
 GROUP BY names ORDER BY min(place)

-- name: json_inexact
-- The first number of an object that a double would change. The first test also matches numbers inside texts, because removing texts is slow.
CASE WHEN len(list_filter(regexp_extract_all(CAST(json AS VARCHAR),
                  '[0-9][0-9.]{15,}(?:[eE][+-]?[0-9]+)?|[0-9][0-9.]*[eE][+-]?[0-9]{3,}|[:,\[\s-](?i:nan|inf)'), lambda number: {differs})) > 0
     THEN list_filter(regexp_extract_all(regexp_replace(CAST(json AS VARCHAR), '"(?:[^"\\]|\\.)*"', '""', 'g'),
                                         '[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|(?i:nan|inf)'), lambda number: {differs})[1] END

-- name: json_differs
-- Whether a number has a point or an exponent and its digits differ from the double's; whole numbers keep their digits. The first test finds most
-- doubles, which DuckDB writes alike, at a tenth of the cost of comparing digits.
CASE WHEN CAST(TRY_CAST(number AS DOUBLE) AS VARCHAR) IS NOT DISTINCT FROM number THEN false
     ELSE regexp_matches(number, '[.eEnN]') AND {written} IS DISTINCT FROM {kept} END

-- name: json_digits
-- The significant digits of a number: without point, exponent and zeros around them.
trim(replace(regexp_replace({number}, '[eE].*', ''), '.', ''), '0')

-- name: json_place
-- The inexact number in the object at a place; row_number() without ORDER BY counts in the file's order.
SELECT number FROM (SELECT row_number() OVER () AS place, {inexact} AS number
                      FROM read_json_objects({path}, format = {format}, hive_partitioning = false)) WHERE place = $1 LIMIT 1

-- name: json_kinds
-- The kinds of values in each column. One scan.
SELECT {kinds} FROM read_json({path}, format = {format}, records = true, columns = {{columns}}, hive_partitioning = false)

-- name: json_kind
-- Bits: 1 text, 2 nested, 4 boolean, 8 with a point or an exponent, whole with up to 15 digits 16, with 64 bits 32, with 128 bits 64, larger 128.
bit_or(CASE WHEN {c} IS NULL THEN 0 WHEN {c}[1] = '"' THEN 1 WHEN {c}[1] IN ('{', '[') THEN 2 WHEN {c}[1] IN ('t', 'f') THEN 4
            WHEN regexp_matches({c}, '[.eE]') THEN 8 WHEN length({c}) <= 15 THEN 16
            WHEN TRY_CAST({c} AS BIGINT) IS NOT NULL THEN 32 WHEN TRY_CAST({c} AS HUGEINT) IS NOT NULL THEN 64 ELSE 128 END)

-- name: view_parquet
-- A Parquet file as a view, with its own types.
CREATE TEMP VIEW {name} AS FROM read_parquet({path}, hive_partitioning = false)

-- name: lock
-- Write instants in UTC, and give no access beyond the folders or to variables of the program; locked against changes.
SET TimeZone = 'UTC'; SET allowed_directories = {folders};
SET enable_external_access = false; SET lock_configuration = true

-- name: describe
-- The columns of a query, without running it.
SELECT * FROM (
{query}
) AS q LIMIT 0

-- name: read
-- The rows of a query; the columns cast types that Python has no exact type for.
SELECT {columns} FROM (
{query}
) AS q({names})
