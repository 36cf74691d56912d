-- What DuckDB is told, with places in braces for what belongs to one merge. It has no indexes; none is named.

-- name: syntax_tree
-- What DuckDB's parser makes of a text, as JSON; nothing is carried out.
SELECT json_serialize_sql($1::VARCHAR);

-- name: warm
-- Does what every merge does first, so that what is loaded then is loaded before.
SELECT json_serialize_sql('SELECT 1');

-- name: part_rows
-- The rows of a part's file, with the types that they are read as.
read_json({path}, format = 'newline_delimited', records = true, columns = {{{columns}}});

-- name: part_view
-- A part as a table, with the types that it says it has.
CREATE VIEW {name} AS SELECT {values} FROM {rows};

-- name: part_without_columns
-- A part that had no rows, of which nothing else is known.
CREATE VIEW {name} AS SELECT NULL AS "no columns" WHERE false;

-- name: misfit
-- The first row of a part whose value does not fit its column; row_number() without ORDER BY counts as the file does.
SELECT place, CAST(raw AS VARCHAR)
FROM (SELECT row_number() OVER () AS place, {name} AS raw FROM {rows})
WHERE raw IS NOT NULL AND ({fitted}) IS NULL LIMIT 1;

-- name: describe
-- Names and types of a SELECT's columns; it is not carried out.
DESCRIBE {select};

-- name: result
-- A SELECT's rows in their order, each column passed through something and under another name.
SELECT {values} FROM ({select}
) AS result({places});

-- name: copy_csv
-- Everything that needs quotes has them already; nothing is quoted here.
COPY ({result}) TO {out}
(FORMAT csv, HEADER, DELIMITER ',', QUOTE '', ESCAPE '', NULLSTR '', NEW_LINE '\r\n', USE_TMP_FILE false);

-- name: copy_parquet
-- Values as they are.
COPY ({result}) TO {out} (FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false);

-- name: feed_table
-- Carries a feed's SELECT out once and keeps two rows: one too many is enough to refuse it.
CREATE TEMP TABLE feed_row AS SELECT {values} FROM (SELECT * FROM ({select}
) AS result({places}) LIMIT 2) AS result;

-- name: feed_sizes
-- How many bytes of JSON each row has that was kept.
SELECT {sizes} FROM temp.main.feed_row;

-- name: feed_texts
-- The row that was kept, a JSON text for each column.
SELECT {texts} FROM temp.main.feed_row;
