-- Statements for the source of an audience; audience/sql_text.py fills {names} with quoted identifiers and the texts below. A query of an operator
-- has lines of its own, so that a comment at its end ends there.

-- name: query
-- The members of an audience that is a query. Index: whatever the query uses.
(
{query}
)

-- name: columns
-- The names and types of the columns, without a row.
SELECT * FROM {members} AS m LIMIT 0

-- name: cut
-- Where to cut: the last key of each range of :rows members, and the number of its members; equal keys are in one range. Index: one on the key gives the order.
SELECT {until} AS until, count(*) AS members, {types}
  FROM (SELECT k, CASE WHEN k IS NOT NULL THEN place - place % :rows END AS piece
          FROM (SELECT k, rank() OVER (ORDER BY {order} ASC NULLS LAST) - 1 AS place FROM (SELECT {place} AS k FROM {members} AS m) AS keys) AS placed) AS cut
 GROUP BY piece ORDER BY piece ASC NULLS FIRST

-- name: first_range
-- Every member up to the first cut. Index: one on the key.
{place} <= {until_value}

-- name: range
-- The members between two cuts. Index: one on the key.
{place} > {after_value} AND {place} <= {until_value}

-- name: with_key
-- Every member that has a key.
{key} IS NOT NULL

-- name: no_member
-- No member.
false

-- name: all
-- Every member.
true

-- name: postgresql_text
-- A key as text.
{key}::text

-- name: duckdb_text
-- A key as text.
CAST({key} AS VARCHAR)

-- name: sqlite_text
-- A key as text.
CAST({key} AS TEXT)

-- name: bad_when
-- A field whose value is none of its type.
WHEN c.r{at} IS NOT NULL AND c.f{at} IS NULL THEN '{field}'

-- name: bad
-- The first such field.
CASE {whens} END

-- name: never_bad
-- Where every value is one of its field's type.
NULL

-- name: read
-- The members of a range with their fields, each of its declared type. Index: one on the key.
SELECT k, bad{outputs} FROM ({fields}) AS j

-- name: read_in_order
-- The same, equal keys beside each other.
SELECT k, bad{outputs} FROM ({fields}) AS j ORDER BY {order}

-- name: fields
-- Each member's key as text, its fields, and the first field whose value is none of its type.
SELECT c.*, {bad} AS bad FROM (SELECT {text} AS k{columns} FROM {members} AS m WHERE {range}) AS c

-- name: judged
-- The same, and whether the expression holds.
SELECT c.*, {bad} AS bad, ({filter}) AS ok FROM (SELECT {text} AS k{columns} FROM {members} AS m WHERE {range}) AS c

-- name: select
-- The selected members, up to ten with an unreadable value in a field, and a row of counts without a key: seen, unreadable, missing. Index: one on the key.
WITH j AS MATERIALIZED ({judged})
SELECT k, bad{outputs} FROM j WHERE ok AND bad IS NULL
UNION ALL
SELECT k, bad{nulls} FROM (SELECT k, bad FROM j WHERE bad IS NOT NULL LIMIT 10) AS b
UNION ALL
SELECT NULL, concat_ws(' ', count(*), count(*) FILTER (WHERE bad IS NOT NULL), count(*) FILTER (WHERE bad IS NULL AND ok IS NULL)){nulls} FROM j

-- name: count
-- Numbers of all members, those without a key, those with an unreadable value in a field, those with a field missing, and clients selected.
SELECT count(*), count(*) FILTER (WHERE k IS NULL), count(*) FILTER (WHERE k IS NOT NULL AND bad IS NOT NULL),
       count(*) FILTER (WHERE k IS NOT NULL AND bad IS NULL AND ok IS NULL),
       count(DISTINCT k COLLATE "C") FILTER (WHERE k IS NOT NULL AND bad IS NULL AND ok)
  FROM ({judged}) AS j

-- name: count_keyless
-- The number of members without a key.
SELECT count(*) FROM {members} AS m WHERE {key} IS NULL

-- name: examples
-- Some of the selected.
SELECT k, bad{outputs} FROM ({judged}) AS j WHERE ok AND bad IS NULL AND k IS NOT NULL LIMIT {limit}

-- name: bad_examples
-- Some with an unreadable value in a field.
SELECT k, bad{outputs} FROM ({judged}) AS j WHERE bad IS NOT NULL AND k IS NOT NULL LIMIT {limit}

-- name: try_key
-- Whether keys of this type have an order, a text and a greatest one; no row is read.
SELECT {until} AS until, {types} FROM (SELECT k FROM (SELECT {place} AS k FROM {members} AS m) AS keys WHERE {order} > {order} LIMIT 0) AS cut
