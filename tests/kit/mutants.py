"""Mutants: a function of Python or SQL without its guard, for all its callers, while a test or its database lasts."""

import inspect
from textwrap import dedent
from types import CodeType
from typing import Any

import asyncpg
import pytest


def mutate(patch: pytest.MonkeyPatch, function: Any, guard: str, instead: str) -> None:
    """Run ``function`` from now on as if its source had ``instead`` in place of ``guard``.

    Its code is replaced and not its name, so modules that imported it call the mutant, too.
    """
    function = inspect.unwrap(function)
    source = dedent(inspect.getsource(function))
    assert source.count(guard) == 1, f"{function.__qualname__} has {source.count(guard)} times: {guard}"
    made = compile(source.replace(guard, instead), function.__code__.co_filename, "exec")
    codes = [one for one in made.co_consts if isinstance(one, CodeType) and one.co_name == function.__name__]
    patch.setattr(function, "__code__", codes[0])


async def mutate_sql(url: str, function: str, guard: str, instead: str) -> None:
    """Replace a function of the database by one that has ``instead`` in place of ``guard``."""
    connection = await asyncpg.connect(url)
    try:
        text = await connection.fetchval("SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = $1", function)
        assert text.count(guard) == 1, f"{function} has {text.count(guard)} times: {guard}"
        await connection.execute(text.replace(guard, instead))
    finally:
        await connection.close()
