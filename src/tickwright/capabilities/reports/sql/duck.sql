-- Statements for DuckDB, with gaps in braces for each merge. DuckDB has no indexes, so none is named.

-- name: syntax_tree
-- The syntax tree of a text, as JSON; nothing runs.
SELECT json_serialize_sql($1::VARCHAR);

-- name: warm
-- Do what every merge does first, so that DuckDB is loaded before.
SELECT json_serialize_sql('SELECT 1');

-- name: part_rows
-- The rows of a part's file, with the types that they are read as.
read_json({path}, format = 'newline_delimited', records = true, columns = {{{columns}}});

-- name: part_view
-- A part as a table, with its declared types.
CREATE VIEW {name} AS SELECT {values} FROM {rows};

-- name: part_without_columns
-- A part without rows, whose columns are unknown.
CREATE VIEW {name} AS SELECT NULL AS "no columns" WHERE false;

-- name: misfit
-- The first value of a column that does not fit, with its row; row_number() without ORDER BY counts in the file's order.
SELECT place, CAST(raw AS VARCHAR)
FROM (SELECT row_number() OVER () AS place, {name} AS raw FROM {rows})
WHERE raw IS NOT NULL AND ({fitted}) IS NULL LIMIT 1;

-- name: describe
-- Names and types of a SELECT's columns, without running it.
DESCRIBE {select};

-- name: result
-- The rows of a SELECT in their order, each column converted and renamed.
SELECT {values} FROM ({select}
) AS result({places});

-- name: copy_csv
-- Values are already quoted where needed, so DuckDB quotes nothing.
COPY ({result}) TO {out}
(FORMAT csv, HEADER, DELIMITER ',', QUOTE '', ESCAPE '', NULLSTR '', NEW_LINE '\r\n', USE_TMP_FILE false);

-- name: copy_parquet
-- Values without conversion.
COPY ({result}) TO {out} (FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false);

-- name: feed_table
-- Run the SELECT of a feed once and keep two rows: one row too many suffices to refuse it.
CREATE TEMP TABLE feed_row AS SELECT {values} FROM (SELECT * FROM ({select}
) AS result({places}) LIMIT 2) AS result;

-- name: feed_sizes
-- The JSON bytes of each kept row.
SELECT {sizes} FROM temp.main.feed_row;

-- name: feed_texts
-- The kept row, a JSON text per column.
SELECT {texts} FROM temp.main.feed_row;
