"""The parts of the bench of the dashboard: its full database, its viewers, its counter; all in small."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvloop

from kit.processes import missing
from kit.servers import PostgresServer
from kit.waiting import eventually
from tickwright.bench.dashboard_cost import counting, open_cost, spent_ms
from tickwright.bench.dashboard_drain import drain_ratio
from tickwright.bench.dashboard_page import first_scripts, first_views, script_bytes
from tickwright.bench.dashboard_reads import NOT_READS, READS, read_times
from tickwright.bench.dashboard_streams import watching
from tickwright.bench.dashboard_world import Site, build_site
from tickwright.bench.ground import Ground
from tickwright.dashboard.page import STATIC, read_files

JOBS, TRACKERS = 2_000, 3_000
WEB = STATIC.parent / "web/src"
_ASKED = re.compile(r"""\bget\(\s*["'](/v1/[^"']+)["']""")
_STREAMED = re.compile(r"""address\(["'](/v1/[^"']+)["']\)""")


@pytest.fixture(scope="module")
def module_url(pg_server: PostgresServer, template_database: str) -> Iterator[str]:
    """A database of the module's own."""
    yield pg_server.create_database("screenbench", template=template_database)
    pg_server.drop_database("screenbench")


@pytest.fixture(scope="module")
def site(module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A small site in it."""
    folder = tmp_path_factory.mktemp("screen")
    with psycopg.connect(module_url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        ground = Ground(module_url, folder, connection, Path("pgbench"))
        try:
            yield uvloop.run(build_site(ground, JOBS, TRACKERS, lambda _: None))
        finally:
            ground.kill9()


def test_the_site_is_as_large_as_asked(site: Site) -> None:
    """All jobs, in every state that a listing shows; all trackers placed; two hundred accounts, each of them judged."""
    found = "SELECT (SELECT count(*) FROM {}), (SELECT count(*) FROM {}), (SELECT count(*) FROM {})"
    names = ("tickwright.scheduled_tasks", "tickwright.trackers WHERE place IS NOT NULL", "tickwright.judged_accounts")
    assert site.ground.row(found.format(*names)) == (JOBS, TRACKERS, 200)
    states = site.ground.connection.execute("SELECT DISTINCT status FROM tickwright.scheduled_tasks").fetchall()
    assert {state for (state,) in states} == {"pending", "completed", "cancelled", "failed"}


def test_every_read_of_the_page_is_measured() -> None:
    """What the dashboard's source requests is what the bench requests: a new view's read cannot be forgotten."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(WEB.rglob("*.ts*")) if "schema.d" not in file.name]
    asked = {path for text in texts for path in (*_ASKED.findall(text), *_STREAMED.findall(text))}
    assert {address for address, _ in READS} == asked - NOT_READS
    assert asked >= NOT_READS


def test_every_read_is_answered_and_the_slowest_counts(site: Site) -> None:
    """Each address finds what it names; the figure is the greatest of them, and the details list all."""
    details: dict[str, Any] = {}
    figures = read_times(site, 3, lambda _: None, details)
    assert len(details["reads"]) == len(READS)
    slowest = max(one["p95_ms"] for one in details["reads"].values())
    assert figures == {"read_p95_ms": slowest} == {"read_p95_ms": details["reads"][details["read_slowest"]]["p95_ms"]}


def test_an_open_overview_costs_statements_and_processor_time(site: Site) -> None:
    """Both are of the API alone; a snapshot asks more than once, and there is one a second."""
    details: dict[str, Any] = {}
    figures = open_cost(site, 5, lambda _: None, details, settle_s=3)
    assert figures.keys() == details["api_alone"].keys() == {"statements_per_s", "db_cpu_ms_per_s"}
    assert figures["statements_per_s"] > 1


def test_the_processor_time_is_that_of_the_servers_own_processes(module_url: str) -> None:
    """Of those that were reached through the counter, and of no other."""
    work = "SELECT sum(number) FROM generate_series(1, 5000000) AS number"
    with counting(module_url) as counter, psycopg.connect(counter.url, autocommit=True) as connection:
        connection.execute(work)
        spent = spent_ms(counter.sessions)
        assert spent.keys() == {connection.info.backend_pid}
        assert spent[connection.info.backend_pid] >= 10


def test_the_counter_counts_what_passes_and_nothing_else(module_url: str) -> None:
    """A statement counts one, whichever way it is sent; answers are not touched."""
    with counting(module_url) as counter, psycopg.connect(counter.url, autocommit=True) as connection:
        before = counter.statements
        for number in range(5):
            assert connection.execute("SELECT %s::integer", (number,), prepare=number > 2).fetchone() == (number,)
        connection.execute("SELECT 1")
        assert counter.statements - before == 6
        assert counter.sessions == {connection.info.backend_pid}


def test_drains_go_with_ten_streams_and_without(site: Site) -> None:
    """A ratio per pair; other jobs stay where they are."""
    details: dict[str, Any] = {}
    before = site.ground.left()
    figures = drain_ratio(site, 2, 500, lambda _: None, details)
    assert len(details["drain_ratios"]) == 2
    assert all(details["drain_snapshots"])
    assert all(value > 0 for value in figures.values())
    assert site.ground.left() == before


def test_viewers_get_snapshots_until_they_leave(site: Site) -> None:
    """Each stream has its own, a second apart."""
    with site.api() as url, watching(url, site.key, 3) as watchers:
        eventually(lambda: watchers.least() >= 3, 20)


def test_a_stream_that_ends_by_itself_is_an_error(site: Site) -> None:
    """A ratio against streams that were not there would mean nothing."""
    error = pytest.raises(RuntimeError, match="2 streams ended")
    with site.api() as url, error, watching(url, site.key, 2) as watchers:
        site.ground.workers[-1].kill()
        eventually(lambda: watchers.open() == 0, 20)


def test_what_the_first_view_loads_is_what_is_counted(site: Site) -> None:
    """The scripts that a real browser loads are those whose bytes are added up, and it marks when it can be used."""
    if shutil.which("chromium") is None:
        missing("chromium")
    details: dict[str, Any] = {}
    figures = script_bytes(details) | first_views(site, 1, lambda _: None, details)
    assert 0 < figures["js_gzip_bytes"] < figures["js_all_gzip_bytes"]
    assert figures["first_view_ms"] > 0
    assert details["first_view_not_counted"] == []


def test_without_a_browser_its_figure_is_left_out_and_reported(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other parts need none, so a bare machine measures them."""
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    assert first_views(site, 1, said.append, {}) == {}
    assert "first_view_ms is left out: there is no chromium" in said[0]


def test_a_script_that_is_loaded_by_another_counts(tmp_path: Path) -> None:
    """From the tags of the page, the first view, and what both name; not the other views."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text('<script type="module" src="./assets/index-1.js"></script>')
    scripts = {
        "index-1": 'import{a}from"./parts-1.js";import(`./OverviewView-1.js`);import(`./JobsView-1.js`)',
        "parts-1": 'import"./deep-1.js"',
        "OverviewView-1": "import(`./Charts-1.js`)",
    }
    for name in ("index-1", "parts-1", "deep-1", "OverviewView-1", "Charts-1", "JobsView-1"):
        (tmp_path / f"assets/{name}.js").write_text(scripts.get(name, ""))
    expected = {f"assets/{name}-1.js" for name in ("index", "parts", "deep", "OverviewView", "Charts")}
    assert first_scripts(read_files(tmp_path)) == expected
