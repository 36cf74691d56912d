"""How deep the parentheses of a text are nested, before DuckDB's parser sees it.

The parser takes time and memory with the square of the depth, cannot be interrupted, and holds the interpreter's lock
meanwhile: 4,000 parentheses in 8 KB stopped a whole process for a minute and took 2.6 GB. DuckDB's own tokens are
counted, so that nothing is hidden in what only another lexer takes for a quote or a comment.
"""

NESTING_MAX = 64
"""Far above what people write; 64 KB of SQL with so many everywhere are read in two seconds."""


def nesting(sql: str) -> int:
    """Return the depth of the deepest parenthesis of ``sql``; one that closes nothing counts for nothing."""
    import duckdb

    text = sql.encode()
    depth = deepest = 0
    for at, kind in duckdb.tokenize(sql):
        if kind == duckdb.token_type.operator:
            depth = max(0, depth + (text[at] == ord("(")) - (text[at] == ord(")")))
            deepest = max(deepest, depth)
    return deepest
