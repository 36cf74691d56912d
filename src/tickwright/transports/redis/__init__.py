"""Redis: an accelerator, never the authority; README.md has the keys and what happens when they are lost."""

from tickwright.transports.redis.claims import RedisMarks, RedisRunClaims
from tickwright.transports.redis.connection import RedisLink, owner
from tickwright.transports.redis.report_parts import RedisParts

__all__ = ["RedisLink", "RedisMarks", "RedisParts", "RedisRunClaims", "owner"]
