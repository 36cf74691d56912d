"""The embedded server: shared by processes, stopped by the last one, and hard to hurt."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import psycopg
import pytest

from kit.embedded import Client, kill_clients, kill_server, postmaster_pid, server_pids
from kit.processes import NOBODY, as_unprivileged, is_running, make_folder
from kit.waiting import eventually
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.embedded import EmbeddedServer, binaries, ensure_database, ensure_reader
from tickwright.sources.named import Sources, SourceSettings

SMALL = {"shared_buffers": "32MB", "max_connections": "20"}


@pytest.fixture
def home() -> Iterator[Path]:
    """A home of the test's own; whatever still runs there at the end is killed."""
    home = make_folder("home") / "h"
    yield home
    kill_clients()
    kill_server(home)
    home.parent.rmdir()


def test_the_last_client_to_leave_stops_the_server(home: Path) -> None:
    """``stop`` returns whether it stopped the server; a second call is harmless."""
    first, second = EmbeddedServer(home, SMALL), EmbeddedServer(home, SMALL)
    first.start()
    second.start()
    assert first.dsn == second.dsn
    assert first.stop() is False
    assert second.is_running
    assert second.stop() is True
    assert second.stop() is False
    assert server_pids(home) == []


async def test_both_drivers_accept_the_address(home: Path) -> None:
    """Asyncpg and psycopg connect with the same URL, and the defaults hold."""
    with EmbeddedServer(home) as server:
        url = ensure_database(server.dsn)
        assert ensure_database(server.dsn) == url
        connection = await asyncpg.connect(url)
        shown = [await connection.fetchval(f"SHOW {name}") for name in ("timezone", "fsync", "shared_buffers")]
        await connection.close()
        assert shown == ["UTC", "on", "256MB"]
        with psycopg.connect(url) as again:
            assert again.execute("SELECT current_database()").fetchone() == ("tickwright",)


async def test_a_reader_reads_the_tables_of_one_database_and_writes_none(home: Path) -> None:
    """With a password and without one, made once or again; it is plain enough for a source."""
    with EmbeddedServer(home, SMALL) as server:
        ensure_database(server.dsn, "shop")
        for url in (server.url("shop"), server.url("shop").replace("//postgres@", "//postgres:secret@")):
            owner = await asyncpg.connect(url)
            await owner.execute("CREATE TABLE IF NOT EXISTS users (id int)")
            await owner.close()
            read = ensure_reader(url, "shop reader")
            assert ensure_reader(url, "shop reader") == read
            reader = await asyncpg.connect(read)
            assert await reader.fetchval("SELECT current_user::text") == "shop reader"
            assert await reader.fetch("SELECT * FROM users") == []
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await reader.execute("INSERT INTO users VALUES (1)")
            await reader.close()
            sources = Sources({"shop": SourceSettings(url=read)}, lambda _: None)
            async with sources.get("shop").query("SELECT 1", {}, timeout=timedelta(minutes=1)) as rows:
                assert [tuple(row) async for piece in rows for row in piece] == [(1,)]
            await sources.aclose()


def test_three_racing_starts_share_one_server(home: Path) -> None:
    """The first one makes the cluster, the others wait and join; none fails."""
    clients = [Client(home) for _ in range(3)]
    assert len({client.says() for client in clients}) == 1
    said = [client.leave() for client in clients]
    assert said == ["stopped False", "stopped False", "stopped True"]
    assert server_pids(home) == []


def test_a_killed_client_does_not_keep_the_server_alive(home: Path) -> None:
    """The kernel releases a dead client's lock, so the client that is left is the last."""
    victim, survivor = Client(home), Client(home)
    assert victim.says() == survivor.says()
    victim.kill9()
    assert survivor.leave() == "stopped True"
    assert server_pids(home) == []


def test_the_server_of_a_killed_last_client_is_stopped_by_the_next_one(home: Path) -> None:
    """A server without clients runs on; the next client joins it and takes it down."""
    victim = Client(home)
    victim.says()
    running = postmaster_pid(home)
    victim.kill9()
    assert is_running(running)
    with EmbeddedServer(home) as server:
        assert postmaster_pid(home) == running
        assert server.stop() is True
    assert server_pids(home) == []


def test_a_killed_postmaster_is_back_at_once_with_its_rows(home: Path) -> None:
    """``start`` again makes what was committed available, while other clients are alive."""
    other = Client(home)
    other.says()
    with EmbeddedServer(home) as server:
        make_row(server.dsn)
        os.kill(postmaster_pid(home), signal.SIGKILL)
        server.start()
        assert read_row(server.dsn) == (42,)
    assert other.leave() == "stopped True"


def test_killing_clients_and_server_at_once_loses_nothing(home: Path) -> None:
    """``kill -9`` of clients and server at once; the next start recovers."""
    writer, other = Client(home), Client(home)
    dsn = writer.says().split()[1]
    other.says()
    make_row(dsn)
    for pid in server_pids(home):
        os.kill(pid, signal.SIGKILL)
    writer.kill9()
    other.kill9()
    with EmbeddedServer(home) as server:
        assert read_row(server.dsn) == (42,)
    assert server_pids(home) == []


def test_a_start_that_is_killed_does_not_break_the_next_one(home: Path) -> None:
    """A client that dies while it makes the cluster leaves nothing that the next one takes for a cluster."""
    victim = Client(home)
    eventually(lambda: list(home.glob("data.new.*")), 30, what="initdb has begun")
    victim.kill9()
    with EmbeddedServer(home, SMALL) as server:
        make_row(server.dsn)
    assert (home / "data" / "PG_VERSION").exists()


def test_a_pid_that_now_belongs_to_another_process_is_ignored(home: Path) -> None:
    """A stale pid file with the number of another live process does not stop the next start."""
    with EmbeddedServer(home, SMALL) as server:
        make_row(server.dsn)
        lines = (home / "data" / "postmaster.pid").read_text().splitlines()
        for pid in server_pids(home):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not server_pids(home))
    (home / "data" / "postmaster.pid").write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    (home / "run" / ".s.PGSQL.5432.lock").write_text(f"{os.getpid()}\n")
    with EmbeddedServer(home, SMALL) as server:
        assert read_row(server.dsn) == (42,)


def test_a_server_that_recovers_is_waited_for(home: Path) -> None:
    """A live server that does not answer yet is no failure; the bound is the caller's."""
    with EmbeddedServer(home, SMALL) as server:
        os.kill(postmaster_pid(home), signal.SIGSTOP)
        late = EmbeddedServer(home, SMALL, start_within=timedelta(milliseconds=200))
        with pytest.raises(Unavailable) as refusal:
            late.start()
        assert refusal.value.code == "embedded_start_timeout"
        os.kill(postmaster_pid(home), signal.SIGCONT)
        late.start()
        assert late.stop() is False
        assert server.is_running


def test_a_deep_home_gets_a_short_socket(home: Path) -> None:
    """A socket's path has at most 103 bytes; the data may lie as deep as it likes."""
    deep = home / ("d" * 60) / ("e" * 60)
    with EmbeddedServer(deep, SMALL) as server:
        folder = Path(server.dsn.split("host=")[1].split("&")[0])
        assert len(str(folder)) < 60
        assert folder.stat().st_mode & 0o777 == 0o700
        make_row(server.dsn)
    kill_server(deep)
    folder.rmdir()


def test_the_home_is_private(home: Path) -> None:
    """Data and socket folder are 0700, files are 0600, nothing listens on TCP; root's home lets the server pass."""
    with EmbeddedServer(home, SMALL) as server:
        folders = [home, home / "data", home / "run"]
        assert [path.stat().st_mode & 0o777 for path in folders] == [
            0o710 if os.geteuid() == 0 else 0o700,
            0o700,
            0o700,
        ]
        files = [path for path in home.iterdir() if path.is_file()]
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
            allowed = connection.execute("SELECT DISTINCT type, auth_method FROM pg_hba_file_rules").fetchall()
        assert set(allowed) == {("local", "trust"), ("host", "reject")}


def test_data_of_another_version_is_refused(home: Path) -> None:
    """A cluster that none of the programs can run is a clear, permanent error."""
    with EmbeddedServer(home, SMALL):
        pass
    (home / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(Rejected, match="PostgreSQL 9") as refusal:
        EmbeddedServer(home).start()
    assert refusal.value.code == "embedded_version_mismatch"


def test_a_setting_that_postgres_refuses_is_reported_with_its_message(home: Path) -> None:
    """A server that ends at once is an error with the end of its log, not a wait."""
    with pytest.raises(Unavailable, match="max_connections") as refusal:
        EmbeddedServer(home, {"max_connections": "many"}).start()
    assert refusal.value.code == "embedded_start_failed"


@pytest.mark.parametrize("name", ["listen_addresses", "unix_socket_directories", "no-such name"])
def test_settings_that_would_open_the_server_are_refused(home: Path, name: str) -> None:
    """Where the server listens is not the caller's choice."""
    with pytest.raises(Rejected):
        EmbeddedServer(home, {name: "x"})


def test_a_home_that_all_users_may_write_is_refused(home: Path) -> None:
    """A user who could replace our files would control the server."""
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(Rejected) as refusal:
        EmbeddedServer(home).start()
    assert refusal.value.code == "embedded_home_unsafe"


def test_a_named_folder_without_programs_is_an_error(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """The named folder is used or refused; no other installation is taken instead."""
    monkeypatch.setenv(binaries.ENVIRONMENT_VARIABLE, "/nonexistent")
    with pytest.raises(Unavailable, match="/nonexistent") as refusal:
        EmbeddedServer(home).start()
    assert refusal.value.code == "embedded_no_binaries"


def test_an_address_before_the_start_is_an_error(home: Path) -> None:
    """The port is known when the server runs."""
    with pytest.raises(Unavailable) as refusal:
        _ = EmbeddedServer(home).dsn
    assert refusal.value.code == "embedded_not_started"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_needs_nothing_else(home: Path) -> None:
    """The whole life of a server, as a user without any privilege."""
    prefix = as_another_user()
    home.mkdir(mode=0o700)
    os.chown(home.parent, 0, 0)
    if prefix == as_unprivileged():
        os.chown(home, NOBODY, NOBODY)
        home.parent.chmod(0o755)
    client = Client(home, "scenario", prefix=prefix, environment={"HOME": "/nonexistent"})
    assert client.leave() == f"done as {NOBODY}"
    assert server_pids(home) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can meet another user's home")
def test_root_runs_another_users_home_as_that_user(home: Path) -> None:
    """What root does in a user's home stays the user's, so the user can go on afterwards."""
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY, NOBODY)
    home.parent.chmod(0o755)
    with EmbeddedServer(home, SMALL) as server:
        make_row(server.dsn)
    assert {path.stat().st_uid for path in home.iterdir()} == {NOBODY}


def make_row(dsn: str) -> None:
    """Commit one row."""
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")


def read_row(dsn: str) -> object:
    """Read it back."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT answer FROM kept").fetchone()


def as_another_user() -> tuple[str, ...]:
    """Return how to become ``nobody``; in name only, where our interpreter lies in a closed folder."""
    attempt = [*as_unprivileged(), sys.executable, "-c", "import psycopg, tickwright"]
    if subprocess.run(attempt, check=False, capture_output=True, cwd="/").returncode == 0:
        return as_unprivileged()
    in_name = ("unshare", f"--map-user={NOBODY}", f"--map-group={NOBODY}")
    if subprocess.run([*in_name, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("our interpreter lies in a closed folder, and there are no user namespaces")
    return in_name
