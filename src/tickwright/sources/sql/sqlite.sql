-- name: query_only
-- Nothing is written through this connection, whatever its file allows.
PRAGMA query_only = ON

-- name: heap_limit
-- What SQLite may allocate in this process, for all queries together: a row of many large values is made whole before anybody can weigh it.
PRAGMA hard_heap_limit = 268435456

-- name: explain
-- Parses one query by itself and runs nothing of it; {query} is an operator's.
EXPLAIN {query}
