"""The plugin of Redis."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated

from pydantic import Field, SecretStr

from tickwright.domain.errors import Rejected, Unavailable
from tickwright.plugin import Context, Ownership, Plugin, SettingsPart
from tickwright.plugin.findings import Finding
from tickwright.ports.fanout import CarryingRunClaims, Marks
from tickwright.ports.reports import SharedParts


class RedisSettings(SettingsPart):
    """Where Redis is.

    Attributes:
        redis_url: Redis for publish marks and run claims; without it PostgreSQL alone decides.
        redis_prefix: Of our keys; two installations on one Redis need two.
        report_prefix: Before the keys of reports in Redis; two installations on one Redis need two.
    """

    redis_url: SecretStr | None = None
    redis_prefix: Annotated[str, Field(pattern="^[A-Za-z0-9{}._-]{1,100}$")] = "gocpi"
    report_prefix: Annotated[str, Field(pattern="^[A-Za-z0-9{}._-]{0,100}$")] = ""


class RedisPlugin(Plugin):
    """Provides fast publish marks, run claims and parts of reports. Redis is never the authority."""

    name = "redis"
    settings = RedisSettings

    def provide(self, context: Context) -> None:
        """Offer the Redis implementations over one connection, if Redis is configured."""
        mine = context.settings.part(RedisSettings)
        if mine.redis_url is None:
            return
        from tickwright.transports.redis.connection import RedisClient
        from tickwright.transports.redis.stores import RedisMarks, RedisParts, RedisRunClaims

        url, prefix, ports = mine.redis_url.get_secret_value(), mine.redis_prefix, context.ports

        def connect() -> RedisClient:
            connection = RedisClient(url)
            ports.on_close(connection.aclose)
            return connection

        ports.offer(RedisClient, connect)
        ports.offer(Marks, lambda: RedisMarks(ports.get(RedisClient), prefix=prefix))
        ports.offer(CarryingRunClaims, lambda: RedisRunClaims(ports.get(RedisClient), prefix=prefix))
        ports.offer(SharedParts, lambda: RedisParts(ports.get(RedisClient), mine.report_prefix))

    async def start(self, context: Context) -> None:
        """Refuse a Redis that can lose keys. A Redis that does not answer is checked again on use.

        Raises:
            Rejected: ``redis_may_evict``, ``invalid_redis_url`` or another code for an unsuitable Redis. Permanent.
        """
        if context.settings.part(RedisSettings).redis_url is None:
            return
        from tickwright.transports.redis.connection import RedisClient

        with suppress(Unavailable):
            await context.ports.get(RedisClient).check()

    def ownerships(self, context: Context) -> Sequence[Ownership]:
        """Return the ownership of the key prefix."""
        mine = context.settings.part(RedisSettings)
        if mine.redis_url is None:
            return ()

        async def claim(installation: str) -> str:
            from tickwright.transports.redis.connection import RedisClient, claim_prefix

            return await claim_prefix(context.ports.get(RedisClient), mine.redis_prefix, installation)

        return (
            Ownership(
                place="Redis",
                roles=frozenset({"scheduler", "fanout-consumer", "report-listener"}),
                prefix=mine.redis_prefix,
                setting="TICKWRIGHT_REDIS_PREFIX",
                mark=f"the key {mine.redis_prefix}:installation",
                claim=claim,
            ),
        )

    async def examine(self, context: Context, alive: Mapping[str, int]) -> Sequence[Finding]:
        """Return whether Redis, if it is configured, answers and keeps keys."""
        if context.settings.part(RedisSettings).redis_url is None:
            return ()
        from tickwright.transports.redis.connection import RedisClient

        try:
            await context.ports.get(RedisClient).check()
        except Unavailable as error:
            says = f"{error.message}; PostgreSQL decides alone meanwhile, which is slower"
            return (Finding("redis", "warn", says, "start it, or correct TICKWRIGHT_REDIS_URL"),)
        except Rejected as error:
            return (Finding("redis", "fail", error.message, "set it so, or leave TICKWRIGHT_REDIS_URL out"),)
        return (Finding("redis", "ok", "answers, and evicts nothing"),)


PLUGIN = RedisPlugin()
