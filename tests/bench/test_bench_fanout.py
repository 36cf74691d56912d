"""The parts of the bench of fan-out: its servers, its queue, its race; on real servers, in small."""

from pathlib import Path
from uuid import uuid4

import aio_pika
import pytest

from kit.servers import RabbitServer, RedisServer
from tickwright.bench import servers as bench_servers
from tickwright.bench.fanout_publish import Race, publish
from tickwright.bench.fanout_queue import open_queue
from tickwright.bench.ground import Ground
from tickwright.bench.servers import Servers, fanout_servers
from tickwright.domain.errors import Rejected


@pytest.fixture
def servers(rabbit_server: RabbitServer, redis_server: RedisServer) -> Servers:
    """Those that all tests share, under a prefix of the test's own."""
    return Servers(rabbit_server.url, redis_server.url, f"bench-{uuid4().hex}", None, None)


async def test_what_was_published_is_read_back_with_its_id_and_nothing_is_left(
    bench_ground: Ground, servers: Servers
) -> None:
    """Every message counts, also one that is there twice; the queues go when the bench ends."""
    async with open_queue(servers.amqp_url, servers.prefix) as queue:
        now_s, key = bench_ground.now_s(), bench_ground.message_key()
        await queue.publish([("A", [0.1]), ("B", [0.1]), ("A", [0.1])], now_s=now_s, key=key)
        assert await queue.waiting() == (3, 0)
        found = await queue.read_back()
        assert sorted(found.values()) == [1, 2]
        assert await queue.waiting() == (0, 0)
    async with await aio_pika.connect(servers.amqp_url) as connection, connection.channel() as channel:
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await channel.get_queue(f"{servers.prefix}.fanout")


async def test_three_schedulers_race_for_a_window(bench_ground: Ground, servers: Servers) -> None:
    """Each message is there once, and nothing asked the database while they were published."""
    said: list[str] = []
    async with open_queue(servers.amqp_url, servers.prefix) as queue:
        figures = await publish(bench_ground, servers, queue, Race(60, window_s=20), said.append)
    assert figures.pop("publish_per_s") > 0
    assert figures == {"published_twice": 0, "lost": 0, "queries_per_tick": 0}, said


def test_a_missing_server_is_named_with_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to install it."""
    monkeypatch.delenv("TICKWRIGHT_AMQP_URL", raising=False)
    monkeypatch.setattr(bench_servers, "_RABBIT_PROGRAMS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Rejected) as refused, fanout_servers(tmp_path):
        pass
    assert refused.value.code == "server_missing"
    assert "apt-get install rabbitmq-server redis-server" in refused.value.message
