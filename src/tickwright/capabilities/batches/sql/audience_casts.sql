-- How a value of a column becomes one of its field's declared type: dialect, field's type, column's type. NULL where it is no such value; a cast that could
-- fail is behind a condition, inside CASE, so that one bad value costs one client and not the chunk. {c} is the column.

-- name: postgresql_int_integer
-- Never fails.
{c}::bigint

-- name: postgresql_int_number
-- Whole numbers in range.
CASE WHEN {c} >= -9223372036854775808 AND {c} < 9223372036854775808 AND {c} = trunc({c}) THEN {c}::bigint END

-- name: postgresql_int_text
-- Digits with a sign.
CASE WHEN {c}::text ~ '^\s*[+-]?[0-9]{1,19}\s*$'
     THEN CASE WHEN {c}::text::numeric BETWEEN -9223372036854775808 AND 9223372036854775807 THEN {c}::text::bigint END END

-- name: postgresql_double_integer
-- Never fails.
{c}::double precision

-- name: postgresql_double_float
-- Never fails.
{c}::double precision

-- name: postgresql_double_decimal
-- What a double can hold.
CASE WHEN {c} = 0 OR {c} = 'NaN' OR abs({c}) BETWEEN 2.3e-308 AND 1.7976931348623157e308 THEN {c}::double precision END

-- name: postgresql_double_text
-- Decimal numbers, with an exponent or without, that a double can hold; NaN and infinity in words.
CASE WHEN lower(btrim({c}::text)) IN ('nan', 'inf', '+inf', '-inf', 'infinity', '+infinity', '-infinity') THEN {c}::text::double precision
     WHEN length({c}::text) <= 400 AND {c}::text ~ '^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\s*$'
     THEN CASE WHEN {c}::text::numeric = 0 OR abs({c}::text::numeric) BETWEEN 2.3e-308 AND 1.7976931348623157e308 THEN {c}::text::double precision END END

-- name: postgresql_string
-- Never fails.
{c}::text

-- name: postgresql_bool_boolean
-- Never fails.
{c}

-- name: postgresql_bool_integer
-- 0 and 1.
CASE {c} WHEN 0 THEN false WHEN 1 THEN true END

-- name: postgresql_bool_text
-- The words that PostgreSQL knows.
CASE WHEN lower(btrim({c}::text)) IN ('true', 't', 'yes', 'y', 'on', '1') THEN true
     WHEN lower(btrim({c}::text)) IN ('false', 'f', 'no', 'n', 'off', '0') THEN false END

-- name: postgresql_timestamp_zoned
-- The years 1 to 9999.
CASE WHEN {c} BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN {c} END

-- name: postgresql_timestamp_local
-- The years 1 to 9999, in UTC.
CASE WHEN {c} BETWEEN '0001-01-01 00:00:00' AND '9999-12-31 23:59:59.999999' THEN {c}::timestamp AT TIME ZONE 'UTC' END

-- name: postgresql_timestamp_text
-- ISO 8601 with a day that exists, of the years 2 to 9998; without a zone in UTC.
CASE WHEN {c}::text ~ ('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])([T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?'
                       || '(Z|z|[+-](0[0-9]|1[0-5])(:?[0-5][0-9])?)?)?$')
     THEN CASE WHEN left({c}::text, 4)::int BETWEEN 2 AND 9998
               THEN CASE WHEN substr({c}::text, 9, 2)::int
                              <= extract(day FROM make_date(left({c}::text, 4)::int, substr({c}::text, 6, 2)::int, 1) + interval '1 month - 1 day')
                         THEN {c}::text::timestamptz END END END

-- name: duckdb_int_integer
-- What fits.
TRY_CAST({c} AS BIGINT)

-- name: duckdb_int_number
-- Whole numbers in range.
CASE WHEN {c} = trunc({c}) THEN TRY_CAST({c} AS BIGINT) END

-- name: duckdb_int_text
-- Digits with a sign.
CASE WHEN regexp_full_match({c}, '\s*[+-]?[0-9]{1,19}\s*') THEN TRY_CAST({c} AS BIGINT) END

-- name: duckdb_double_integer
-- Never fails.
CAST({c} AS DOUBLE)

-- name: duckdb_double_float
-- Never fails.
CAST({c} AS DOUBLE)

-- name: duckdb_double_decimal
-- Never fails.
CAST({c} AS DOUBLE)

-- name: duckdb_double_text
-- Decimal numbers, with an exponent or without, that a double can hold; NaN and infinity in words.
CASE WHEN lower(trim({c})) IN ('nan', 'inf', '+inf', '-inf', 'infinity', '+infinity', '-infinity') THEN TRY_CAST(ltrim(trim({c}), '+') AS DOUBLE)
     WHEN length({c}) <= 400 AND regexp_full_match({c}, '\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?\s*') AND NOT isinf(TRY_CAST({c} AS DOUBLE))
     THEN TRY_CAST({c} AS DOUBLE) END

-- name: duckdb_string
-- Never fails.
CAST({c} AS VARCHAR)

-- name: duckdb_bool_boolean
-- Never fails.
{c}

-- name: duckdb_bool_integer
-- 0 and 1.
CASE {c} WHEN 0 THEN false WHEN 1 THEN true END

-- name: duckdb_bool_text
-- The words that PostgreSQL knows.
CASE WHEN lower(trim({c})) IN ('true', 't', 'yes', 'y', 'on', '1') THEN true
     WHEN lower(trim({c})) IN ('false', 'f', 'no', 'n', 'off', '0') THEN false END

-- name: duckdb_timestamp_zoned
-- The years 1 to 9999.
CASE WHEN {c} BETWEEN TIMESTAMPTZ '0001-01-01 00:00:00+00' AND TIMESTAMPTZ '9999-12-31 23:59:59.999999+00' THEN {c} END

-- name: duckdb_timestamp_local
-- The years 1 to 9999, in UTC.
CASE WHEN {c} BETWEEN TIMESTAMP '0001-01-01 00:00:00' AND TIMESTAMP '9999-12-31 23:59:59.999999' THEN CAST(CAST({c} AS TIMESTAMP) AS TIMESTAMPTZ) END

-- name: duckdb_timestamp_text
-- ISO 8601 with a day that exists, of the years 2 to 9998; without a zone in UTC.
CASE WHEN regexp_full_match({c}, '[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])([T ]([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?'
                                 || '(Z|z|[+-](0[0-9]|1[0-5])(:?[0-5][0-9])?)?)?')
          AND TRY_CAST(left({c}, 4) AS INTEGER) BETWEEN 2 AND 9998
     THEN TRY_CAST({c} AS TIMESTAMPTZ) END

-- name: sqlite
-- As it is stored: every value has a type of its own there, and is read in Python.
{c}
