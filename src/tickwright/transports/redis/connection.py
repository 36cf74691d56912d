"""The connection to Redis: one client per process, every await bounded, no automatic retry of commands.

A client library that repeats a command can mistake its own success for another client's. Our scripts tolerate a
repetition, because every claim has a token. A Redis that can evict keys is refused.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from hashlib import sha1
from importlib import resources
from typing import Any
from urllib.parse import quote, urlsplit

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.client import NEVER_DECODE
from redis.exceptions import (
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from tickwright.domain.errors import Rejected, Unavailable

CONNECTIONS_MAX = 8
CONNECT_TIMEOUT_S = 1.0
COMMAND_TIMEOUT_S = 1.0
CALL_TIMEOUT_S = 2.5  # to wait for a connection, to connect and to run the command
CLOSE_TIMEOUT_S = 2.0
VERSION_MIN = (6, 2)

_QUERY_PASSWORD = re.compile(r"(?i)((?:^|&)(?:ssl_)?password=)[^&]*")
_ELSEWHERE = (ReadOnlyError, MasterDownError, MovedError)
"""Answers of a server that is not the primary; its name may resolve to another server now."""
_ELSEWHERE_IN_SCRIPT = re.compile(r"-(READONLY|MASTERDOWN|MOVED) ")  # the form of Redis 6.2 inside a script
_log = structlog.get_logger("tickwright.redis")


def shown_redis_url(url: str) -> str:
    """Return ``url`` with its passwords masked, for logs and terminals."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    netloc = f"{user}:***@{host}" if colon else f"{user}{at}{host}"
    query = _QUERY_PASSWORD.sub(r"\g<1>***", parts.query)
    return f"{parts.scheme}://{netloc}{parts.path}" + (f"?{query}" if query else "")


def key_part(text: str) -> str:
    """Return ``text`` as one part of a key: no ``:``, no control character, no brace of a hash tag."""
    return quote(text, safe="*@+")


def milliseconds(length: timedelta) -> int:
    """Return a key's life in milliseconds, at least 1, because Redis refuses 0."""
    return max(1, round(length / timedelta(milliseconds=1)))


class Script:
    """A Lua script of this package, called by its digest."""

    def __init__(self, filename: str) -> None:
        self.text = resources.files("tickwright.transports.redis").joinpath(filename).read_text(encoding="utf-8")
        self.digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class RedisClient:
    """One client per process. It connects on demand and again after a failure; it sends nothing twice.

    Args:
        url: ``redis://``, ``rediss://`` (TLS, with verification) or ``unix://``; user and password as usual.

    Raises:
        Rejected: ``invalid_redis_url``. Permanent.
    """

    def __init__(self, url: str) -> None:
        try:
            self.shown_url = shown_redis_url(url)
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS_MAX,
                timeout=CONNECT_TIMEOUT_S,
                socket_connect_timeout=CONNECT_TIMEOUT_S,
                socket_timeout=COMMAND_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
                decode_responses=True,
                encoding_errors="surrogateescape",  # non-UTF-8 names can be read and dropped
                protocol=2,
            )
        except ValueError:  # its text can hold a part of the password
            raise Rejected("invalid_redis_url", "the URL of Redis is not redis://, rediss:// or unix://") from None
        self._client: Any = Redis(connection_pool=pool)  # its commands are not typed

    async def call(self, script: Script, keys: Sequence[str], *arguments: str | int | bytes, raw: bool = False) -> Any:
        """Run ``script`` once, by its text if Redis does not know its digest.

        With ``raw`` texts of the answer are bytes: stored values need not be UTF-8.

        Raises:
            Unavailable: ``redis_unavailable``. The script may have run. Retry.
        """
        options, rest = ({NEVER_DECODE: True} if raw else {}), (len(keys), *keys, *arguments)
        async with self._translated():
            try:
                return await self._client.execute_command("EVALSHA", script.digest, *rest, **options)
            except NoScriptError:  # the script did not run
                return await self._client.execute_command("EVAL", script.text, *rest, **options)

    async def call_each(self, script: Script, calls: Sequence[tuple[str | int, ...]]) -> list[Any]:
        """Run ``script`` once for each tuple in one round trip. The first argument is the key; keys may differ in slot.

        Raises:
            Unavailable: ``redis_unavailable``. Some of the scripts may have run. Retry.
        """
        async with self._translated(), self._client.pipeline(transaction=False) as pipeline:
            for number, arguments in enumerate(calls):
                which = ("EVALSHA", script.digest) if number else ("EVAL", script.text)  # the first loads it
                pipeline.execute_command(*which, 1, *arguments)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
        return answers

    async def check(self) -> None:
        """Check at the start that this Redis is suitable.

        Raises:
            Rejected: ``redis_may_evict``, ``redis_too_old``, ``redis_forbidden``. Permanent until an operator acts.
            Unavailable: Redis does not answer. Retry.
        """
        async with self._translated():
            try:
                facts: dict[str, Any] = {}
                for section in ("server", "memory", "persistence"):
                    facts |= await self._client.execute_command("INFO", section)
            except NoPermissionError as error:
                raise Rejected("redis_forbidden", f"{self.shown_url}: allow the command INFO ({error})") from error
        version = str(facts.get("redis_version", ""))
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < VERSION_MIN:
            raise Rejected("redis_too_old", f"{self.shown_url} is Redis {version}; 6.2 or newer is needed")
        policy = facts.get("maxmemory_policy")
        if policy != "noeviction":
            raise Rejected(
                "redis_may_evict",
                f"{self.shown_url} has maxmemory-policy {policy}: it may evict publish marks and run claims. "
                "Set maxmemory-policy to noeviction, or use a Redis of its own.",
            )
        if not facts.get("aof_enabled"):
            _log.warning(
                "redis.not_durable", url=self.shown_url, remedy="set appendonly yes: a restart loses every mark"
            )

    async def aclose(self) -> None:
        """Close every connection within two seconds. Repeated calls are harmless."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._client.aclose(close_connection_pool=True)
        except (RedisError, OSError, TimeoutError):
            return

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        """Bound the time of the body, and raise ``Unavailable`` for errors of Redis and of the network.

        The client loses a cancellation that arrives while it connects. It is raised here, so that the caller ends.
        """
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                yield
        except (RedisError, OSError, TimeoutError) as error:
            if isinstance(error, _ELSEWHERE) or _ELSEWHERE_IN_SCRIPT.search(str(error)):
                await self._reconnect()
            verb = "refuses the command" if isinstance(error, ResponseError) else "does not answer"
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise Unavailable("redis_unavailable", f"Redis {verb}: {reason}"[:500]) from error
        finally:
            if task is not None and task.cancelling() > cancels:
                raise asyncio.CancelledError

    async def _reconnect(self) -> None:
        """Drop every connection, those in use after their calls, so that the next calls resolve the name again."""
        pool = self._client.connection_pool
        with suppress(RedisError, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await pool.update_active_connections_for_reconnect()
                await pool.disconnect(inuse_connections=False)


_OWNER = Script("owner.lua")


async def claim_prefix(redis: RedisClient, prefix: str, installation: str) -> str:
    """Return the owner of ``prefix``. Without one, this installation becomes it.

    Raises:
        Unavailable: ``redis_unavailable``. Retry.
    """
    return str(await redis.call(_OWNER, [f"{prefix}:installation"], installation))
