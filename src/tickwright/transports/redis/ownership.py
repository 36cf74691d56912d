"""Whose prefix it is: one key without an end, which whoever comes first has."""

from tickwright.transports.redis.connection import RedisLink, Script

_OWNER = Script("owner.lua")


def owner_key(prefix: str) -> str:
    """Return the key that says whose ``prefix`` is."""
    return f"{prefix}:installation"


async def owner(link: RedisLink, prefix: str, installation: str) -> str:
    """Return which installation has ``prefix``; from now on this one where none had it.

    Raises:
        Unavailable: ``redis_unavailable``. Retry.
    """
    return str(await link.call(_OWNER, [owner_key(prefix)], installation))
