"""AUD-1: whatever the keys are and however they are cut, the ranges of an audience are its members, each once."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.audiences import DATABASES, NOW
from kit.postgres import as_reader
from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.capabilities.batches.audience.schema import read_audience
from tickwright.sources.named import Sources, SourceSettings

TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=5)
LETTERS = st.text("aAbBäÄ -_1'\\:$", min_size=1, max_size=4)
INTEGERS = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-9, 9)


@pytest.fixture(scope="module")
def urls(pg_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An empty database of each kind; every audience is a query without a table."""
    import duckdb

    folder: Path = tmp_path_factory.mktemp("audiences")
    duckdb.connect(str(folder / "e.duckdb")).close()
    (folder / "e.db").touch()
    name = "audience_properties"
    yield {
        "postgresql": pg_server.create_database(name),
        "sqlite": f"sqlite://{folder}/e.db",
        "duckdb": f"duckdb://{folder}/e.duckdb",
    }
    pg_server.drop_database(name)


def literal(key: str | int) -> str:
    """Return a key in SQL."""
    return str(key) if isinstance(key, int) else "'" + key.replace("'", "''") + "'"


async def ranges(url: str, keys: list[Any], rows: int) -> tuple[list[int], list[list[str]]]:
    """Return the planned number of members and the clients of each range."""
    sources = Sources({"s": SourceSettings(url=as_reader(url))}, lambda _: None)
    query = "\nUNION ALL ".join(f"SELECT {literal(key)} AS id" for key in keys)
    terms = read_audience({"source": "s", "query": query, "key": "id"})
    async with Audiences(sources, None).open(terms) as audience:
        planned = [chunk async for chunk in audience.cut(rows)]
        found = []
        for chunk in planned:
            async with audience.read(chunk.value, None, NOW) as reading:
                found.append([action.client_id async for piece in reading for action in piece])
    await sources.aclose()
    return [chunk.members for chunk in planned], found


@pytest.mark.matrix
@pytest.mark.parametrize("kind", DATABASES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.lists(TEXTS, min_size=1, max_size=30)
    | st.lists(LETTERS, min_size=1, max_size=30)
    | st.lists(INTEGERS, min_size=1, max_size=30),
    rows=st.integers(1, 7),
)
def test_every_client_is_in_one_range(urls: dict[str, str], kind: str, keys: list[Any], rows: int) -> None:
    """The numbers of members add up, equal keys are together, only the last range may be smaller than asked."""
    members, found = asyncio.run(ranges(urls[kind], keys, rows))
    assert Counter(client for piece in found for client in piece) == Counter(set(map(str, keys)))
    assert sum(members) == len(keys)
    counted = Counter(map(str, keys))
    assert members == [sum(counted[client] for client in piece) for piece in found]
