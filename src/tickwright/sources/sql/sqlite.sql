-- name: query_only
-- Refuse writes through this connection, whatever the file allows.
PRAGMA query_only = ON

-- name: spill
-- The folder for sorts that do not fit into memory; {folder} belongs to this query alone.
PRAGMA temp_store_directory = '{folder}'

-- name: explain
-- Parse one query by itself without running it; {query} is an operator's.
EXPLAIN {query}
