"""Redis: an accelerator, never the authority; README.md has the keys and what happens when they are lost."""

from tickwright.transports.redis.connection import RedisLink
from tickwright.transports.redis.ownership import owner
from tickwright.transports.redis.publish_marks import RedisMarks
from tickwright.transports.redis.report_parts import RedisParts
from tickwright.transports.redis.run_claims import RedisRuns

__all__ = ["RedisLink", "RedisMarks", "RedisParts", "RedisRuns", "owner"]
