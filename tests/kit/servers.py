"""The real servers of the test kit: each starts itself, is killed by pid and leaves nothing behind.

All have ``start() stop() kill9() restart() destroy()`` and ``url``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from kit.kafka import KafkaServer
from kit.object_store import GcsServer, ObjectServer
from kit.pgbouncer import PgBouncer
from kit.postgres import PostgresServer, Standby, StopMode, postgres_bin
from kit.rabbit import RabbitServer
from kit.redis import RedisServer

__all__ = [
    "GcsServer",
    "KafkaServer",
    "ObjectServer",
    "PgBouncer",
    "PostgresServer",
    "RabbitServer",
    "RedisServer",
    "StopMode",
    "postgres_bin",
    "started",
]

Server = TypeVar(
    "Server", GcsServer, KafkaServer, ObjectServer, PgBouncer, PostgresServer, RabbitServer, RedisServer, Standby
)


@contextmanager
def started(server: Server) -> Iterator[Server]:
    """Start a server for the length of the block, and remove it."""
    try:
        server.start()
        yield server
    finally:
        server.destroy()
