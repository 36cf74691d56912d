-- name: query_only
-- Nothing is written through this connection, whatever its file allows.
PRAGMA query_only = ON

-- name: explain
-- Parses one query by itself and runs nothing of it; {query} is an operator's.
EXPLAIN {query}
