"""What a consumer knows of the database without asking it for each message."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from tickwright.capabilities.fanout.messages import NO_KEYS, MessageKeys, read_keys
from tickwright.domain.dbclock import DbClock
from tickwright.ports.ids import monotonic
from tickwright.store.pool import UNAVAILABLE, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.fanout.sql", "snapshot.sql")
_log = structlog.get_logger("tickwright.fanout")


@dataclass(slots=True)
class ConsumerSnapshot:
    """A consumer's facts from the database: read every few seconds, kept while the database is unavailable.

    Attributes:
        modules: ``None`` before the first reading.
    """

    clock: DbClock = field(default_factory=DbClock)
    modules: frozenset[str] | None = None
    partners: Mapping[str, int] = field(default_factory=dict)
    keys: MessageKeys = NO_KEYS

    @property
    def now_s(self) -> float | None:
        """A time that the database's clock has reached, if known."""
        return self.clock.now(monotonic()) if self.clock.known else None

    async def read(self, pool: Pool) -> bool:
        """Read it again; return false if the database is unavailable."""
        try:
            row = await pool.fetchrow(_SQL["snapshot"])
            self.keys = await read_keys(pool)
        except UNAVAILABLE as error:
            _log.warning("fanout.snapshot_not_read", error=repr(error))
            return False
        if self.clock.sample(row["now_s"], monotonic()):
            _log.warning("fanout.db_clock_jump", now_s=row["now_s"])
        self.modules = frozenset(row["modules"])
        self.partners = dict(zip(row["partners"], row["numbers"], strict=True))
        return True
