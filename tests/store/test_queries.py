"""Named SQL: the loader's rules, and every query of the package against the real schema."""

import re
from pathlib import Path

import asyncpg
import pytest

import tickwright
from tickwright.domain.masking import SEPARATOR
from tickwright.store.queries import filled, load

ROOT = Path(tickwright.__file__).parent
ELSEWHERE = {"migrations", "bench", "embedded", "sources", "testing"}  # scripts; measuring programs; other databases
OF_OTHERS = {
    "fragments.sql", "claim_ranges.sql", "walks.sql", "expressions.sql",  # pieces
    "duck.sql", "audience.sql", "audience_casts.sql",  # of DuckDB, and of any source
    "withdrawals.sql", "loans.sql",  # of an example's databases
}  # fmt: skip
BORROWED = {"executions.sql": ("release.sql",)}
"""Files that have pieces of another one in their folder."""
FILES = sorted(path for path in ROOT.rglob("*.sql") if not ELSEWHERE & set(path.parts) and path.name not in OF_OTHERS)


def _load(path: Path) -> dict[str, str]:
    return dict(load(".".join(("tickwright", *path.relative_to(ROOT).parts[:-1])), path.name))


def _bare(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


def _fragments(path: Path) -> dict[str, str]:
    """Return what the templates of a file are filled with: other queries of it, the folder's fragments, the store's."""
    folder = (path.with_name(name) for name in ("fragments.sql", "claim_ranges.sql", "walks.sql"))
    pieces = (one for one in (ROOT / "store/sql/fragments.sql", *folder) if one.exists())
    borrowed = (path.with_name(name) for name in BORROWED.get(path.name, ()))
    return {name: _bare(text) for one in (*borrowed, path, *pieces) for name, text in _load(one).items()}


def _filled(sql: str, history: str, fragments: dict[str, str]) -> str:
    """Fill a template as its store does."""
    values = fragments | {"history": history, "name": history, "source": "tickwright.scheduled_tasks"}
    values |= {
        "key": "t.idempotency_key",
        "error": "t.error_message",
        "payload": "t.payload::text",
        "text": "t.error_message",
        "separator": SEPARATOR,
    }
    for _ in range(3):  # a fragment may hold another
        sql = re.sub(r"\{([a-z_]+)\}", lambda found: values[found[1]], sql)
    return sql


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
async def test_every_query_fits_the_schema(database_url: str, path: Path) -> None:
    """PostgreSQL accepts each of them: tables, columns, types and parameters are there."""
    refused = {}
    connection = await asyncpg.connect(database_url)
    try:
        history = await connection.fetchval("SELECT tickwright.ensure_history(clock_timestamp())")
        for name, sql in _load(path).items():
            text = _filled(sql, history, _fragments(path))
            if _bare(text).lstrip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
                try:
                    await connection.prepare(text)
                except asyncpg.PostgresError as error:
                    refused[name] = str(error)
    finally:
        await connection.close()
    assert refused == {}


def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    folder = tmp_path / "some_queries"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "q.sql").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "some_queries", raising=False)
    return "some_queries"


def test_a_query_comes_with_its_promise_and_without_its_semicolon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promise goes to the server as well, so that a log says which query it was."""
    package = _package(
        tmp_path, monkeypatch, "-- name: one\n-- Say one.\nSELECT 1;\n\n-- name: two\n-- Two.\nSELECT 2;\n"
    )
    queries = load(package, "q.sql")
    assert queries == {"one": "-- Say one.\nSELECT 1", "two": "-- Two.\nSELECT 2"}
    with pytest.raises(TypeError):
        queries["one"] = "SELECT 3"  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("-- name: one\nSELECT 1;", "does not say what it promises"),
        ("-- name: one\n-- One.\nSELECT 1;\n-- name: one\n-- Again.\nSELECT 1;", "two queries named one"),
        ("SELECT 1;\n-- name: one\n-- One.\nSELECT 1;", "text before the first"),
    ],
)
def test_a_careless_file_fails_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    """At import, not when the query is needed."""
    with pytest.raises(ValueError, match=problem):
        load(_package(tmp_path, monkeypatch, text), "q.sql")


def test_a_fragment_is_inserted_without_its_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that two statements share is written once."""
    text = "-- name: seen\n-- Part.\na,\nb;\n\n-- name: one\n-- Say it.\nSELECT {seen}, {other};\n"
    queries = filled(load(_package(tmp_path, monkeypatch, text), "q.sql"), "seen")
    assert queries["one"] == "-- Say it.\nSELECT a,\nb, {other}"
