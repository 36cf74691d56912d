"""The test kit's own servers: they start, are killed, restart and keep their data."""

import asyncpg
import psycopg

from kit.servers import PgBouncer, PostgresServer, RabbitServer, RedisServer, started


def test_a_killed_postgres_restarts_with_its_rows(mortal_postgres: PostgresServer) -> None:
    """Rows committed before ``kill -9`` are there after the restart, on the same port."""
    with psycopg.connect(mortal_postgres.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    mortal_postgres.kill9()
    mortal_postgres.start()
    with psycopg.connect(mortal_postgres.url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_stopped_postgres_restarts(mortal_postgres: PostgresServer) -> None:
    """After every stop mode the server can be started again."""
    for mode in ("smart", "fast", "immediate"):
        mortal_postgres.restart(mode)
    with psycopg.connect(mortal_postgres.url) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)


async def test_each_test_has_its_own_database(database_url: str) -> None:
    """The database is fresh, UTC and writable."""
    connection = await asyncpg.connect(database_url)
    try:
        assert await connection.fetchval("SHOW timezone") == "UTC"
        await connection.execute("CREATE TABLE mine (id bigint)")
    finally:
        await connection.close()


def test_the_pooler_shares_server_connections(pgbouncer: PgBouncer) -> None:
    """Transaction mode: two clients, one after the other, have the same backend."""

    def backend() -> object:
        with psycopg.connect(pgbouncer.url, prepare_threshold=None) as connection:
            return connection.execute("SELECT pg_backend_pid()").fetchone()

    assert backend() == backend()


def test_a_killed_redis_restarts_with_its_keys(mortal_redis: RedisServer) -> None:
    """With ``appendfsync always`` a key survives ``kill -9``."""
    assert redis_answer(mortal_redis, "SET kept 42") == "+OK"
    mortal_redis.kill9()
    mortal_redis.start()
    assert redis_answer(mortal_redis, "GET kept") == "$2"


async def test_a_killed_rabbit_restarts_with_its_queue() -> None:
    """A durable queue survives ``kill -9``, and the disk alarm can be set and cleared."""
    import aio_pika

    with started(RabbitServer()) as server:
        async with await aio_pika.connect(server.url) as connection, connection.channel() as channel:
            await channel.declare_queue("kept", durable=True)
        server.sync_definitions()
        server.kill9()
        server.start()
        assert "kept" in server.control("list_queues", "name")
        server.set_disk_alarm(on=True)
        assert "disk" in server.control("eval", "rabbit_alarm:get_alarms().")
        server.set_disk_alarm(on=False)
        assert "disk" not in server.control("eval", "rabbit_alarm:get_alarms().")


def redis_answer(server: RedisServer, command: str) -> str:
    """Send one inline command and return the first line of the answer."""
    import socket

    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as link:
        link.sendall(command.encode() + b"\r\n")
        return link.makefile().readline().strip()
