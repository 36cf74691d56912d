-- name: query_only
-- Nothing is written through this connection, whatever its file allows.
PRAGMA query_only = ON

-- name: spill
-- Where a sort that memory does not hold goes; {folder} is of this query alone.
PRAGMA temp_store_directory = '{folder}'

-- name: explain
-- Parses one query by itself and runs nothing of it; {query} is an operator's.
EXPLAIN {query}
