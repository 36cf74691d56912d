"""Whose the prefixes are that this process is to use in RabbitMQ, in Kafka, in Redis and in the object store.

Two installations under one prefix take each other's messages, believe each other's marks, replace each other's files.
So each place says which installation it belongs to, whoever comes first has it, and another one does not start there.
Only of the default folder for files it is said and not refused: two programs of one user on one machine both have it.
A place that does not answer now is asked again until it does; nothing can be taken from it meanwhile.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.signatures import digest_of
from tickwright.process.brokers import kafka_terms
from tickwright.process.database import translated
from tickwright.process.objects import objects_url, open_objects
from tickwright.process.settings import Settings
from tickwright.store.pool import Pool
from tickwright.store.queries import load

if TYPE_CHECKING:
    from tickwright.transports.redis import RedisLink

_SQL = load("tickwright.process.sql", "wiring.sql")
OWNER_KEY = "installation"
ASK_AGAIN_S = 2.0
NAME_CHARS = 16
OWNER_CHARS_MAX = 100
KAFKA_WAIT_S = 3.0
"""A start waits no longer for a Kafka that is away."""
OBJECTS = "the object store"
_ROLES = {
    "Kafka": {"relay", "poll-consumer"},
    "RabbitMQ": {"scheduler", "fanout-consumer", "report-listener"},
    "Redis": {"scheduler", "fanout-consumer", "report-listener"},
    OBJECTS: {"scheduler", "report-listener"},
}
_log = structlog.get_logger("tickwright.belonging")


class Belonging:
    """The places of one process that have not yet said whose they are.

    Args:
        roles: Of the process; only those that use a place ask it.
        redis: The connection of the process; ``None`` without one.
    """

    def __init__(self, settings: Settings, roles: Collection[str], pool: Pool, redis: "RedisLink | None") -> None:
        self._settings, self._pool = settings, pool
        self._installation = ""
        self._said: set[str] = set()
        self._just_marked: set[str] = set()
        asks: dict[str, Callable[[str], Awaitable[str]]] = {OBJECTS: self._of_objects}
        if settings.amqp_url is not None:
            asks["RabbitMQ"] = partial(self._of_rabbitmq, settings.amqp_url.get_secret_value())
        if settings.kafka_bootstrap is not None:
            asks["Kafka"] = self._of_kafka
        if redis is not None:
            asks["Redis"] = partial(self._of_redis, redis)
        self._open = {place: ask for place, ask in asks.items() if _ROLES[place] & {*roles}}

    async def claim(self) -> bool:
        """Ask every place that has not answered yet; return whether all have.

        Raises:
            Rejected: ``prefix_in_use``: a place is another installation's. Permanent until an operator acts.
            Unavailable: ``database_unavailable``. Retry.
        """
        if not self._open:
            return True
        if not self._installation:
            with translated():
                found = await self._pool.fetchval(_SQL["installation"])
            self._installation = digest_of("belonging", found).hex()[:NAME_CHARS]
        installation = self._installation
        for place, ask in list(self._open.items()):
            try:
                owner = (await ask(installation))[:OWNER_CHARS_MAX]
            except Unavailable as error:
                self._say_not_asked(place, error)
                continue
            except Rejected as error:  # such as a user without the right to say it; the place may be used all the same
                self._say_not_asked(place, error)
                owner = installation
            if owner != installation:
                self._refuse(self._in_use(place, owner), place)
            if place in self._just_marked:  # by whom else too? The next question tells
                self._just_marked.remove(place)
            else:
                del self._open[place]
        return not self._open

    async def claim_in_the_end(self) -> None:
        """Ask until all have answered. Raises as :meth:`claim`."""
        while True:
            if await self.claim():
                return
            await asyncio.sleep(ASK_AGAIN_S)

    def _say_not_asked(self, place: str, error: TickwrightError) -> None:
        if place not in self._said:
            self._said.add(place)
            _log.warning("belonging.not_asked", place=place, code=error.code, reason=error.message)

    def _refuse(self, error: Rejected, place: str) -> None:
        """Raise it; of the default folder, which two programs of one user share, say it only."""
        if place != OBJECTS or self._settings.object_store is not None:
            raise error
        _log.warning("belonging.folder_shared", code=error.code, reason=error.message)

    def _in_use(self, place: str, owner: str) -> Rejected:
        of = self._settings
        where, setting, mark = {
            "RabbitMQ": (of.amqp_prefix, "TICKWRIGHT_AMQP_PREFIX", f"the exchange {of.amqp_prefix}.{OWNER_KEY}"),
            "Kafka": (of.kafka_prefix, "TICKWRIGHT_KAFKA_PREFIX", f"the topic {of.kafka_prefix}.{OWNER_KEY}"),
            "Redis": (of.redis_prefix, "TICKWRIGHT_REDIS_PREFIX", f"the key {of.redis_prefix}:{OWNER_KEY}"),
            OBJECTS: (objects_url(of), "TICKWRIGHT_OBJECT_STORE", f"the object {OWNER_KEY}"),
        }[place]
        text = (
            f"{where!r} in {place} belongs to another installation ({owner}): both would take each other's work. "
            f"Set {setting} to a place of its own; if that installation is gone, delete {mark}."
        )
        return Rejected("prefix_in_use", text, place=place, setting=setting, owner=owner)

    async def _of_rabbitmq(self, url: str, installation: str) -> str:
        from tickwright.transports.rabbitmq import owner

        return await owner(url, self._settings.amqp_prefix, installation)

    async def _of_kafka(self, installation: str) -> str:
        from tickwright.transports.kafka import owner

        terms = kafka_terms(self._settings)
        if terms is None:
            return installation
        return await asyncio.to_thread(owner, replace(terms, wait_s=KAFKA_WAIT_S), installation)

    async def _of_redis(self, redis: "RedisLink", installation: str) -> str:
        from tickwright.transports.redis import owner

        return await owner(redis, self._settings.redis_prefix, installation)

    async def _of_objects(self, installation: str) -> str:
        """Write the mark where there is none, and read back what counts.

        Not every store can write only where nothing is: two that write at once may both read their own mark. The last
        one has it; the other one is told by the next question.
        """
        async with open_objects(self._settings) as objects:
            if await objects.size(OWNER_KEY) is None:
                with tempfile.NamedTemporaryFile() as file:
                    file.write(installation.encode())
                    file.flush()
                    await objects.put_file(OWNER_KEY, Path(file.name))
                self._just_marked.add(OBJECTS)
            pieces = objects.read(OWNER_KEY)  # the first is enough of whatever is there
            async with aclosing(pieces):  # type: ignore[type-var]  # stores give generators
                return (await anext(pieces, b"")).decode(errors="replace").strip()
