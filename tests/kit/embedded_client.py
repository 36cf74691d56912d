"""A client of the embedded server as a separate process, to be killed.

Run as ``python embedded_client.py HOME COMMAND``; prints ``ready`` and waits for its input to end.

======== ==============================================================
command  what it does
======== ==============================================================
hold     starts, prints ``ready DSN``, stops when the input ends, prints ``stopped True|False``
write    starts, makes a table with one row, stops
read     starts, prints the row, stops
scenario the whole life of a server, for users other than the one of the test run
======== ==============================================================
"""

import os
import signal
import sys
from pathlib import Path

import psycopg

from tickwright.embedded import EmbeddedServer, ensure_database


def say(*values: object) -> None:
    """Write one line to the parent process."""
    sys.stdout.write(" ".join(map(str, values)) + "\n")
    sys.stdout.flush()


def hold(home: Path) -> None:
    """Use the server until the input ends."""
    server = EmbeddedServer(home)
    server.start()
    say("ready", server.dsn)
    sys.stdin.read()
    say("stopped", server.stop())


def write(home: Path) -> None:
    """Write and commit a row."""
    with EmbeddedServer(home) as server, psycopg.connect(ensure_database(server.dsn)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    say("written")


def read(home: Path) -> None:
    """Print the row."""
    with EmbeddedServer(home) as server, psycopg.connect(ensure_database(server.dsn)) as connection:
        say(connection.execute("SELECT answer FROM kept").fetchone())


def scenario(home: Path) -> None:
    """Write, kill the server, read, and stop as the last client."""
    server = EmbeddedServer(home)
    server.start()
    url = ensure_database(server.dsn)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    os.kill(int((home / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    server.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
    assert server.stop(), "the last client stops the server"
    say("done as", os.geteuid())


if __name__ == "__main__":
    {"hold": hold, "write": write, "read": read, "scenario": scenario}[sys.argv[2]](Path(sys.argv[1]))
