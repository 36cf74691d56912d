"""Redis: an accelerator, never the authority; README.md has the keys and what happens when they are lost."""

from tickwright.adapters.redis.link import RedisLink
from tickwright.adapters.redis.marks import RedisMarks
from tickwright.adapters.redis.owner import owner
from tickwright.adapters.redis.parts import RedisParts
from tickwright.adapters.redis.runs import RedisRuns

__all__ = ["RedisLink", "RedisMarks", "RedisParts", "RedisRuns", "owner"]
