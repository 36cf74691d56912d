"""The house's rules as tests: layers, SQL in its place, sizes, docstrings, one list of columns."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from importlinter.cli import lint_imports

import tickwright
from tickwright.store.queries import load

ROOT = Path(tickwright.__file__).parent
REPOSITORY = ROOT.parents[1]
MODULES = sorted(ROOT.rglob("*.py"))

SQL = re.compile(r"\b(SELECT|INSERT\s+INTO|UPDATE\s+\w|DELETE\s+FROM)\b")
SQL_ALLOWED = {
    ("transports/postgres/broker.py", "SELECT 1"),
    ("capabilities/jobs/worker/claims.py", "SELECT tickwright.ensure_history(clock_timestamp())"),
    ("cli/doctor.py", "end it: SELECT * FROM pg_stat_activity ORDER BY xact_start"),  # advice, never run
    ("store/migrate.py", "SELECT pg_advisory_lock("),
    ("process/database.py", "SELECT pg_backend_pid()"),
}
MEASURES = "bench/"  # a measuring program asks the database about itself

FUNCTION_LINES_MAX, FUNCTION_LINES_AIM = 70, 25
FILE_LINES_MAX = 600
LONG_FUNCTIONS_SHARE_MAX = 0.03


def name_of(path: Path) -> str:
    """Return a module's path inside the package."""
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    """Return a module, parsed."""
    return ast.parse(path.read_text(encoding="utf-8"))


def functions() -> Iterator[tuple[str, int]]:
    """Every function with its lines, docstring not counted."""
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0]
                documented = ast.get_docstring(node, clean=False) is not None
                prose = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
                yield f"{name_of(path)}:{node.name}", (node.end_lineno or 0) - node.lineno + 1 - prose


def texts(path: Path) -> Iterator[str]:
    """Every string literal that is no docstring."""
    tree = tree_of(path)
    prose = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def test_imports_go_one_way_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers, independence of capabilities and brokers, the domain's purity: import-linter's contracts hold."""
    monkeypatch.chdir(REPOSITORY)
    assert lint_imports(cache_dir=None) == 0


def test_sql_lives_in_sql_files() -> None:
    """No statement in Python, but for a few that lock, ask for a process id, or prepare a template."""
    found = {
        (name_of(path), text)
        for path in MODULES
        if not name_of(path).startswith(MEASURES)
        for text in texts(path)
        if SQL.search(text)
    }
    assert found - SQL_ALLOWED == set()


def test_the_list_of_exceptions_has_no_entry_too_many() -> None:
    """An exception that is needed no longer is taken off the list."""
    found = {(name_of(path), text) for path in MODULES for text in texts(path)}
    assert SQL_ALLOWED - found == set()


def test_functions_are_short() -> None:
    """None past 70 lines, and of every hundred at most three past 25."""
    sizes = dict(functions())
    assert {name for name, lines in sizes.items() if lines > FUNCTION_LINES_MAX} == set()
    long = sorted((lines, name) for name, lines in sizes.items() if lines > FUNCTION_LINES_AIM)
    assert len(long) <= LONG_FUNCTIONS_SHARE_MAX * len(sizes), long


def test_files_are_short() -> None:
    """A file past 600 lines wants to be two things. No smaller limit: a subject is not cut up to satisfy a number."""
    sizes = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name for name, lines in sizes.items() if lines > FILE_LINES_MAX} == set()


def test_every_module_opens_with_a_paragraph() -> None:
    """A package or module without a docstring says nothing of what it decides, trusts and refuses."""
    bare = [name_of(path) for path in MODULES if not ast.get_docstring(tree_of(path))]
    assert bare == []


def test_every_port_is_documented() -> None:
    """A Protocol's methods are promises: each says what it promises."""
    silent = []
    for path in sorted((ROOT / "ports").glob("*.py")):
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.ClassDef):
                continue
            for member in [node, *node.body]:
                if not isinstance(member, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if member.name != "__init__" and not ast.get_docstring(member):
                    silent.append(f"{path.name}:{node.name}.{member.name}")
    assert silent == []


async def test_the_fragments_name_the_columns_of_a_job_in_their_order(database_url: str) -> None:
    """What moves a job to its history table moves every column to its own place."""
    fragments = load("tickwright.capabilities.jobs.sql", "fragments.sql")
    bodies = {name: "\n".join(text.splitlines()[1:]) for name, text in fragments.items()}
    columns = re.findall(r"\w+", bodies.pop("columns"))
    assert bodies.pop("attempt"), "a value inside the others, not a row of them"
    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'tickwright.scheduled_tasks'::regclass "
            "AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        assert columns == [row["attname"] for row in rows]
    finally:
        await connection.close()
    for name, body in bodies.items():
        values = [value.strip() for value in body.split(",")]
        assert len(values) == len(columns), name
        for column, value in zip(columns, values, strict=True):
            named = re.match(r"t\.(\w+)", value)
            assert named is None or named[1] == column, f"{name}: {value} stands in {column}'s place"


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
