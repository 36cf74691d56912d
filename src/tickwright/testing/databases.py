"""Databases for tests: a PostgreSQL that starts in a fraction of a second, and databases that are copies of a template.

::

    cache folder ──▶ embedded server (no fsync), shared by all test runs of a user ──▶ template: this release's schema
                                                                                           │ copies of its files
                                                     a database per test session ◀─────────┴──▶ a database per test

The first run initialises the server and the template. Later runs start the server and find the template. Its name
holds the schema's revision and digest, so another release makes its own. The last run that leaves stops the server;
when a run is killed, a small process that waits for its end does.

A database belongs to the connection that made it, by a lock that ends with that connection. So a run drops what a
killed one has left, and nothing else.

With a URL of your own server the same happens there. Its role makes databases; only a superuser's have a clock that can
be moved.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.embedded import EmbeddedServer
from tickwright.embedded.binaries import find_binaries
from tickwright.ports.ids import random_bytes
from tickwright.store.migrate import migrate
from tickwright.store.queries import REVISIONS, head_revision, load

HOME_VARIABLE = "TICKWRIGHT_TEST_HOME"
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "shared_buffers": "64MB",
    "max_connections": "300",
    "autovacuum": "off",
}
"""Of a server whose data are of no value. The client that starts it decides."""
TEMPLATES_KEPT = 4
CONNECT_TIMEOUT_S = 10
_GUARD = 'read -r word; [ "$word" = left ] || exec "$0" -m tickwright.testing.guard "$1"'
_SQL, _CLOCK = load("tickwright.testing.sql", "databases.sql"), load("tickwright.testing.sql", "clock.sql")

Prepare = Callable[[str], object]
"""Makes a program's own tables in the database of the URL, such as by its migrations."""


@dataclass(frozen=True, slots=True)
class ScratchDatabase:
    """A database of tests with this release's schema.

    Attributes:
        url: For every connection of the test.
        is_movable: Whether its clock can be moved.
    """

    url: str
    is_movable: bool


def default_home() -> Path:
    """Return the folder of the user's test server: ``TICKWRIGHT_TEST_HOME``, or one in the user's cache folder."""
    if named := os.environ.get(HOME_VARIABLE):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tickwright" / f"test-postgres-{find_binaries().major}"


@contextmanager
def open_scratch_server(url: str | None = None, *, home: Path | None = None) -> "Iterator[ScratchServer]":
    """Yield a server on which tests make databases.

    Args:
        url: Of your own server; its role may create databases. The embedded server by default.
        home: Of the embedded server; :func:`default_home` by default.

    Raises:
        Unavailable: The server does not start or answer. Retry.
        Rejected: As :class:`~tickwright.embedded.EmbeddedServer`. Permanent.
    """
    if url is not None:
        with _connected(url) as server:
            yield server
        return
    home = home or default_home()
    embedded = EmbeddedServer(home, SETTINGS)
    embedded.start()
    try:
        with _guarded(home), _connected(embedded.dsn) as server:
            yield server
    finally:
        embedded.stop()


@contextmanager
def _guarded(home: Path) -> Iterator[None]:
    """Let a shell wait for the end of this process; if it did not leave, the guard stops a server without users."""
    command = ["sh", "-c", _GUARD, sys.executable, str(home)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        cwd="/", text=True,
    ) as guard:  # fmt: skip
        try:
            yield
        finally:
            with suppress(BrokenPipeError):
                guard.communicate("left\n")


@contextmanager
def _connected(url: str) -> "Iterator[ScratchServer]":
    try:
        connection = psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S)
    except psycopg.Error as error:
        raise Unavailable("database_unavailable", f"the server for tests does not answer: {error}") from error
    with connection:
        server = ScratchServer(url, connection)
        server.drop_leftovers()
        try:
            yield server
        finally:
            with suppress(psycopg.OperationalError):  # the server is gone: the next run drops them
                server.drop_all()


class ScratchServer:
    """Makes and drops databases of tests; one per process, for one thread.

    Attributes:
        url: Of the database from which the others are made.
    """

    def __init__(self, url: str, connection: psycopg.Connection) -> None:
        self.url, self._connection = url, connection
        self._made: list[str] = []
        self._template: str | None = None
        row = connection.execute(_SQL["is_superuser"]).fetchone()
        self._is_superuser = bool(row and row[0])

    def create(self, prepare: Prepare | None = None, *, template: ScratchDatabase | None = None) -> ScratchDatabase:
        """Return a new database with this release's schema.

        Args:
            prepare: Called with its URL.
            template: A database of this server to copy; no session may use it.

        Raises:
            psycopg.Error: The server does not answer, or its role may not create databases.
            Exception: What ``prepare`` raises.
        """
        source = self._template_name() if template is None else _name_of(template.url)
        name = f"tickwright_test_{random_bytes(6).hex()}"
        made = ScratchDatabase(self._url_of(name), self._is_superuser)
        self._own(name)
        self._made.append(name)
        self._run("create", name=name, template=source)
        if prepare is not None:
            prepare(made.url)
        return made

    def drop(self, database: ScratchDatabase) -> None:
        """Drop a database of :meth:`create`, with its sessions."""
        name = _name_of(database.url)
        self._run("drop", name=name)
        self._connection.execute(_SQL["disown"], [name])
        self._made.remove(name)

    def drop_all(self) -> None:
        """Drop every database that this process has made."""
        for name in list(self._made):
            self.drop(ScratchDatabase(self._url_of(name), self._is_superuser))

    def drop_leftovers(self) -> None:
        """Drop databases of processes that were killed."""
        for (name,) in self._connection.execute(_SQL["leftovers"]).fetchall():
            if self._own(name):
                with suppress(psycopg.errors.InsufficientPrivilege):  # another role's
                    self._run("drop", name=name)
                self._connection.execute(_SQL["disown"], [name])

    def _own(self, name: str) -> bool:
        row = self._connection.execute(_SQL["own"], [name]).fetchone()
        return bool(row and row[0])

    def _template_name(self) -> str:
        """Return the template of this release, which one process makes."""
        if self._template is None:
            name = template_name(movable=self._is_superuser)
            self._connection.execute(_SQL["lock"])
            try:
                found = self._connection.execute(_SQL["exists"], [name]).fetchone()
                if not (found and found[0]):
                    self._make_template(name)
            finally:
                self._connection.execute(_SQL["unlock"])
            self._template = name
        return self._template

    def _make_template(self, name: str) -> None:
        unfinished = f"tickwright_test_{random_bytes(6).hex()}"
        self._own(unfinished)
        self._run("create", name=unfinished, template="template1")
        url = self._url_of(unfinished)
        if self._is_superuser:
            with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S) as connection:
                connection.execute(_CLOCK["install"])
        migrate(url)
        self._run("rename", name=unfinished, wanted=name)
        self._connection.execute(_SQL["disown"], [unfinished])
        others = [row[0] for row in self._connection.execute(_SQL["templates"]).fetchall() if row[0] != name]
        for old in others[: max(0, len(others) - TEMPLATES_KEPT + 1)]:
            self._run("drop", name=old)

    def _run(self, query: str, **names: str) -> None:
        text = _SQL[query]  # a placeholder of psycopg's own has no use in these
        self._connection.execute(sql.SQL(text).format(**{key: sql.Identifier(name) for key, name in names.items()}))

    def _url_of(self, database: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path="/" + quote(database, safe="")))


def given_database(url: str) -> ScratchDatabase:
    """Return the user's own test database, migrated to this release's schema; its clock cannot be moved.

    Raises:
        Rejected: ``not_a_test_database``: its name does not contain ``test``. Permanent.
        Unavailable: It does not answer. Retry.
    """
    if "test" not in _name_of(url):
        text = f"the database {_name_of(url)!r} of TICKWRIGHT_TEST_DATABASE_URL has no 'test' in its name"
        raise Rejected("not_a_test_database", text)
    migrate(url)
    return ScratchDatabase(url, is_movable=False)


def template_name(*, movable: bool) -> str:
    """Return the name of this release's template: its revision, and a digest of all that it consists of."""
    digest = hashlib.sha256(_CLOCK["install"].encode() if movable else b"")
    for path in sorted(REVISIONS.glob("*.sql")):
        digest.update(path.read_bytes())
    return f"tickwright_template_{head_revision()}_{digest.hexdigest()[:12]}"


def _name_of(url: str) -> str:
    return urlsplit(url).path.lstrip("/")
