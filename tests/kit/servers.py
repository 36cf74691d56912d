"""The real servers of the test kit: each starts itself, is killed by pid and leaves nothing behind.

All have ``start() stop() kill9() restart() destroy()`` and ``url``.
"""

from kit.pgbouncer import PgBouncer
from kit.postgres import PostgresServer, StopMode, postgres_bin
from kit.rabbit import RabbitServer
from kit.redis import RedisServer

__all__ = ["PgBouncer", "PostgresServer", "RabbitServer", "RedisServer", "StopMode", "postgres_bin"]
