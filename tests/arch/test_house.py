"""The rules of the house as tests: layers, SQL in its place and package, sizes, docstrings, names."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import tickwright

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
FOLDER_FILES_MAX = 20
LONG_FUNCTIONS_SHARE_MAX = 0.03

CROWDED = {"bench": 42}
"""Folders above ``FOLDER_FILES_MAX`` and what they may have: measuring programs only, and the number only falls."""

TABLES = {
    "capabilities/jobs": {
        "dead_letters", "job_group_hints", "job_groups", "job_keys", "job_unique_ends", "job_uniques",
        "schedule_skips", "scheduled_tasks", "scheduled_tasks_dead",
        "scheduled_tasks_waiting", "schedules", "task_type_secrets", "task_types", "type_grants", "type_rates",
        "workflow_edges", "workflow_ends", "workflow_nodes", "workflows",
    },
    "capabilities/polling": {
        "account_freshness", "account_lags", "judged_accounts", "poll_batches", "poll_cap_slices", "poll_caps",
        "poll_done", "poll_ends", "poll_lags", "poll_news", "poll_partitions", "poll_places", "poll_queue",
        "poll_reads", "poll_relays", "poll_slices", "poll_slots", "poll_wheels", "polling_schedule_config",
        "scheduler_outbox", "shipment_polling_tracker", "tracker_events", "tracker_intake", "trackers",
    },
    "capabilities/fanout": {
        "entities", "fanout_claims", "fanout_cursors", "fanout_turns", "fanout_windows", "listed_modules",
        "message_keys", "modules", "open_modules", "stale_entities",
    },
    "capabilities/reports": {"report_data", "report_links", "report_parts", "report_types", "reports"},
    "capabilities/batches": {
        "batch_versions", "batches", "campaign_executions", "campaigns", "execution_actions", "execution_chunks",
        "execution_skips", "executions",
    },
    "capabilities/operations": {"alert_receiver_secrets", "alert_receivers", "alerts"},
    "partners": {"partner_shares", "partner_states", "partners"},
    "transports/postgres": {"messages"},
}  # fmt: skip
"""Tables and views by their package. The others belong to ``engine`` and ``store``, and every package may name them."""

PARTNERS_OF = {"capabilities/polling", "capabilities/fanout"}
"""Rooms that may name the tables of ``partners``, which is below them."""

FOREIGN_SQL = {
    "capabilities/batches/sql/release.sql",
    "capabilities/fanout/sql/modules.sql",
    "capabilities/reports/sql/listing.sql",
    "demo/sql/world.sql",
    "engine/sql/workers.sql",
    "transports/kafka/polls.sql",
}
"""Files that name a table of another package today. The list only shrinks."""

SHARED_NAMES = {
    "Ack", "Answer", "Beat", "Bound", "Couriers", "DeadLetter", "Delivery", "Entities", "Fail", "Failed",
    "Field", "Gate", "Gateway", "Holding", "Job", "Kind", "Link", "Listener", "Node",
    "Page", "Place", "Problem", "Progress", "Race", "Receiver", "Record", "Refused", "RequestedReport",
    "ResultWriter", "Rows", "Run", "Seen", "Series", "Shares", "Site", "Subscriber", "TaskQueue", "Upkeep",
    "UpkeepTerms", "Window", "World",
}  # fmt: skip
"""Names that more than one class has today. The list only shrinks."""


def name_of(path: Path) -> str:
    """Return a module's path inside the package."""
    return path.relative_to(ROOT).as_posix()


@cache
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
    """A package or module has a docstring that says what it decides, trusts and refuses."""
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


def test_folders_are_not_crowded() -> None:
    """A folder has at most twenty files; migrations are a list in the order of time."""
    beside = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*")
        if path.suffix in {".py", ".sql"} and "migrations" not in path.parts
    )
    crowded = {folder: files for folder, files in beside.items() if files > CROWDED.get(folder, FOLDER_FILES_MAX)}
    assert crowded == {}


def test_a_sql_file_names_tables_of_its_own_room_and_of_the_engine() -> None:
    """Only one package knows the columns of a table; another one calls that package."""
    packages = {table: package for package, tables in TABLES.items() for table in tables}
    foreign = set()
    for path in sorted(ROOT.rglob("*.sql")):
        name = name_of(path)
        if "migrations" in path.parts or name.startswith(MEASURES):
            continue
        statements = re.sub(r"--[^\n]*", "", path.read_text(encoding="utf-8"))
        named = {packages[table] for table in re.findall(r"\btickwright\.(\w+)", statements) if table in packages}
        allowed = {package for package in packages.values() if name.startswith(f"{package}/")}
        if any(name.startswith(f"{package}/") for package in PARTNERS_OF):
            allowed.add("partners")
        if named - allowed:
            foreign.add(name)
    assert foreign - FOREIGN_SQL == set()


def test_a_module_loads_sql_of_its_own_room_or_of_the_engine() -> None:
    """Statements of another package are an import that import-linter does not see."""
    foreign = set()
    for path in MODULES:
        for package in re.findall(r'\bload\("tickwright\.([\w.]+)\.sql"', path.read_text(encoding="utf-8")):
            if package != "engine" and not name_of(path).startswith(f"{package.replace('.', '/')}/"):
                foreign.add((name_of(path), package))
    assert {(name, package) for name, package in foreign if not name.startswith(MEASURES)} == set()


def test_a_class_has_a_name_of_its_own() -> None:
    """One name, one class: a reader who searches for it finds one."""
    names = Counter(
        node.name
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} - SHARED_NAMES == set()
