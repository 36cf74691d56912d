"""What a consumer knows of the database without asking it for each message."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from tickwright.capabilities.fanout.messages import NO_KEYS, MessageKeys
from tickwright.domain.dbclock import DbClock
from tickwright.ports.ids import monotonic
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import filled, load

_SQL = filled(load("tickwright.capabilities.fanout.sql", "snapshot.sql"), "message_keys")
_log = structlog.get_logger("tickwright.fanout")


@dataclass(slots=True)
class ConsumerSnapshot:
    """A consumer's facts from the database: read with each heartbeat, kept while the database is unavailable.

    Attributes:
        modules: By name the target, ``remote:POOL``, if any; ``None`` before the first reading.
    """

    clock: DbClock = field(default_factory=DbClock)
    modules: Mapping[str, str | None] | None = None
    partners: Mapping[str, int] = field(default_factory=dict)
    keys: MessageKeys = NO_KEYS

    @property
    def now_s(self) -> float | None:
        """A time that the database's clock has reached, if known."""
        return self.clock.now(monotonic()) if self.clock.known else None

    async def read(self, database: Pool | Connection) -> Callable[[], None]:
        """Read it again, for example with a heartbeat; return what adopts it. Raises ``UNAVAILABLE``; retry."""
        row = await database.fetchrow(_SQL["snapshot"])
        read_s = monotonic()

        def adopt() -> None:
            if self.clock.sample(row["now_s"], read_s):
                _log.warning("fanout.db_clock_jump", now_s=row["now_s"])
            self.modules = dict(zip(row["modules"], row["targets"], strict=True))
            self.partners = dict(zip(row["partners"], row["numbers"], strict=True))
            self.keys = MessageKeys(row["keys"], read_s)

        return adopt
