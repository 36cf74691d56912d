-- name: bound
-- Read one file, {file}, and spill at most {bytes_max} bytes below {folder}; no other access.
SET max_temp_directory_size = '{bytes_max}B'; SET enable_progress_bar = false; SET TimeZone = 'UTC'; SET python_enable_replacements = false; SET allowed_paths = [{file}]; SET allowed_directories = [{folder}];
SET enable_external_access = false; SET lock_configuration = true

-- name: csv
-- Every value as its text; an empty one is NULL, a quoted empty one is an empty text. Options are given, because detection would skip lines that do not fit.
read_csv({file}, delim = {separator}, quote = '"', escape = '"', comment = '', skip = 0, header = true, all_varchar = true, allow_quoted_nulls = false,
         null_padding = false, ignore_errors = false, strict_mode = true)

-- name: parquet
-- A Parquet file with its own types.
read_parquet({file})

-- name: columns
-- The names of the columns.
SELECT * FROM {rows} AS f LIMIT 0

-- name: load
-- The rows in the order of one column, each with its rank; equal values have equal ranks, a NULL has none. At most {most}.
CREATE TABLE members AS
SELECT CASE WHEN {order} IS NOT NULL THEN rank() OVER (ORDER BY {order} NULLS LAST) END AS {place}, *
  FROM (SELECT * FROM {rows} LIMIT {most}) AS f ORDER BY 1

-- name: count
-- The number of rows. Index: none, DuckDB stores it.
SELECT count(*) FROM members
