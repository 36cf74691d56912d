"""Two installations under one prefix: the second one does not start, whichever of the places they share."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from kit.kafka import KafkaServer
from kit.mutants import mutate
from kit.nodes import running, settings_of
from kit.servers import PostgresServer, RabbitServer, RedisServer
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.app.declarations import Declarations
from tickwright.domain.errors import Rejected
from tickwright.plugin.settings import Settings
from tickwright.process.ownership import OwnershipCheck
from tickwright.transports.objectstore.folder import FolderStore
from tickwright.transports.objectstore.plugin import OWNER_KEY

PLACES = {
    "Kafka": "TICKWRIGHT_KAFKA_PREFIX",
    "RabbitMQ": "TICKWRIGHT_AMQP_PREFIX",
    "Redis": "TICKWRIGHT_REDIS_PREFIX",
    "the object store": "TICKWRIGHT_OBJECT_STORE",
}


@pytest.fixture
async def urls(pg_server: PostgresServer, template_database: str) -> AsyncIterator[list[str]]:
    """Two databases that are two installations; a copy of a database is the installation that it was copied from."""
    names = [f"i{uuid4().hex[:8]}" for _ in range(2)]
    urls = [pg_server.create_database(name, template=template_database) for name in names]
    for url in urls:
        connection = await asyncpg.connect(url)
        await connection.execute("UPDATE tickwright.installation SET id = gen_random_uuid()")
        await connection.close()
    yield urls
    for name in names:
        pg_server.drop_database(name)


@pytest.fixture
def shared(
    rabbit_server: RabbitServer, redis_server: RedisServer, kafka_server: KafkaServer, tmp_path: Path
) -> dict[str, dict[str, Any]]:
    """For each place the settings that name it."""
    prefix = f"t{uuid4().hex[:8]}"
    kafka = {"kafka_bootstrap": kafka_server.url, "kafka_prefix": prefix, "kafka_allow_single_broker": True}
    return {
        "Kafka": {**kafka, "kafka_replication": 1},
        "RabbitMQ": {"amqp_url": SecretStr(rabbit_server.url), "amqp_prefix": prefix},
        "Redis": {"redis_url": SecretStr(redis_server.url), "redis_prefix": prefix},
        "the object store": {"object_store": (tmp_path / "shared").as_uri()},
    }


def _settings(url: str, folder: Path, number: int, **more: Any) -> Settings:
    home = folder / f"home-{number}"
    home.mkdir(exist_ok=True)
    return settings_of(url, home, "", **more)


@pytest.mark.matrix
@pytest.mark.parametrize("place", PLACES)
async def test_a_place_of_another_installation_is_refused(
    urls: list[str], shared: dict[str, dict[str, Any]], tmp_path: Path, place: str
) -> None:
    """With the place, the setting and how to free it; the first one starts again, and the mark hides its id."""
    own, role = _settings(urls[0], tmp_path, 1, **shared[place]), "relay" if place == "Kafka" else "scheduler"
    for _ in range(2):
        async with running(own, Declarations(), role):
            pass
    with pytest.raises(Rejected) as refused:
        async with running(_settings(urls[1], tmp_path, 2, **shared[place]), Declarations(), role):
            pass
    assert (refused.value.code, refused.value.details["place"]) == ("prefix_in_use", place)
    assert PLACES[place] in refused.value.message
    assert "delete the" in refused.value.message
    connection = await asyncpg.connect(urls[0])
    secret = await connection.fetchval("SELECT id::text FROM tickwright.installation")
    await connection.close()
    assert refused.value.details["owner"] not in ("", "another", secret)
    async with running(_settings(urls[1], tmp_path, 2, **shared[place]), Declarations(), "worker"):
        pass  # it uses none of them


@pytest.mark.matrix
@pytest.mark.parametrize("place", PLACES)
async def test_the_suite_notices_a_mark_that_is_not_compared(
    urls: list[str], shared: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The mutant starts in the other installation's place."""
    mutate(monkeypatch, OwnershipCheck.claim, "if owner != self._installation:", "if False:")
    with pytest.raises(pytest.fail.Exception):
        await test_a_place_of_another_installation_is_refused(urls, shared, tmp_path, place)


async def test_a_broker_that_was_unavailable_at_the_start_is_checked_later(
    urls: list[str], rabbit_server: RabbitServer, shared: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """The second installation starts unchecked, and ends once the broker answers that the prefix is another's."""
    async with running(_settings(urls[0], tmp_path, 1, **shared["RabbitMQ"]), Declarations(), "scheduler"):
        pass
    async with TcpProxy("127.0.0.1", rabbit_server.port) as proxy:
        proxy.refuse()
        url = SecretStr(proxy.rewrite(rabbit_server.url))
        settings = _settings(urls[1], tmp_path, 2, **{**shared["RabbitMQ"], "amqp_url": url})
        with capture_logs() as logs:
            async with running(settings, Declarations(), "scheduler") as node:
                assert any(entry["event"] == "ownership.not_checked" for entry in logs)
                proxy.heal()
                await eventually_async(lambda: node.supervisor.phase == "stopped", 60, what="it ended by itself")
    assert any(entry["event"] == "node.prefix_in_use" and entry["code"] == "prefix_in_use" for entry in logs)


async def test_of_two_installations_that_mark_a_store_at_once_one_ends(
    urls: list[str], shared: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Both found no mark and read their own; the one whose mark was replaced ends by itself."""
    settings = _settings(urls[0], tmp_path, 1, **shared["the object store"])
    with capture_logs() as logs:
        async with running(settings, Declarations(), "scheduler") as node:
            (tmp_path / "shared" / OWNER_KEY).write_text("another")
            await eventually_async(lambda: node.supervisor.phase == "stopped", 60, what="it ended by itself")
    [said] = [entry for entry in logs if entry["event"] == "node.prefix_in_use"]
    assert "(another)" in said["reason"]


async def test_only_the_beginning_of_a_large_mark_is_read(
    urls: list[str], shared: dict[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is not trusted: the error is short, whatever the size of the object."""
    pieces: list[int] = []
    read = FolderStore.read

    async def counted(store: FolderStore, key: str, start: int = 0) -> AsyncIterator[bytes]:
        async for piece in read(store, key, start):
            pieces.append(len(piece))
            yield piece

    monkeypatch.setattr(FolderStore, "read", counted)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / OWNER_KEY).write_text("x" * 5_000_000)
    with pytest.raises(Rejected) as refused:
        async with running(_settings(urls[0], tmp_path, 1, **shared["the object store"]), Declarations(), "scheduler"):
            pass
    assert (refused.value.code, len(pieces)) == ("prefix_in_use", 1)
    assert len(refused.value.message) < 1000


async def test_two_programs_in_one_default_folder_get_a_warning_and_start(urls: list[str], tmp_path: Path) -> None:
    """They share the home of their user; the warning names the setting that separates them."""
    home = tmp_path / "home"
    home.mkdir()
    with capture_logs() as logs:
        for url in urls:
            async with running(settings_of(url, home, ""), Declarations(), "scheduler"):
                pass
    [said] = [entry for entry in logs if entry["event"] == "ownership.folder_shared"]
    assert "TICKWRIGHT_OBJECT_STORE" in said["reason"]
