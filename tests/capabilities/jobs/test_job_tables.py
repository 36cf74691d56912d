"""The tables of jobs match each other and the SQL fragments that list their columns."""

import re

import asyncpg

from tickwright.store.queries import load, with_shared

OF_LIVE_JOBS = frozenset({"awaited", "due_at"})
"""Columns that say nothing about a finished job: a move leaves their default."""


async def test_the_fragments_name_the_columns_of_a_job_in_their_order(database_url: str) -> None:
    """A move to the history table writes every column into the column of its name."""
    pieces = load("tickwright.capabilities.jobs.sql", "fragments.sql")
    shared = ("job_columns", "request_columns", "claim_columns", "detail_columns")
    fragments = with_shared(pieces, *shared, of=pieces)
    lists = fragments.keys() - {*shared, "columns", "attempt", "stopped"}
    bodies = {name: "\n".join(fragments[name].splitlines()[1:]) for name in (*lists, "columns")}
    columns = re.findall(r"\w+", bodies.pop("columns"))
    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'tickwright.scheduled_tasks'::regclass "
            "AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        assert columns == [row["attname"] for row in rows if row["attname"] not in OF_LIVE_JOBS]
    finally:
        await connection.close()
    for name, body in bodies.items():
        values = [value.strip() for value in body.split(",")]
        assert len(values) == len(columns), name
        for column, value in zip(columns, values, strict=True):
            named = re.match(r"t\.(\w+)", value)
            assert named is None or named[1] == column, f"{name}: {value} is in the place of {column}"


async def test_every_history_table_has_the_columns_of_the_live_one_in_their_order(database_url: str) -> None:
    """A row moves as it is (``SELECT (job).*``), so parent and children may never differ in order."""
    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch(
            "SELECT c.oid::regclass::text AS name, array_agg(a.attname::text ORDER BY a.attnum) AS columns "
            "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
            "WHERE c.oid = 'tickwright.scheduled_tasks'::regclass OR c.oid IN "
            "(SELECT inhrelid FROM pg_inherits WHERE inhparent = 'tickwright.scheduled_tasks'::regclass) GROUP BY 1"
        )
    finally:
        await connection.close()
    assert len(rows) >= 4
    assert len({tuple(row["columns"]) for row in rows}) == 1
