"""The rows of ``tickwright.entities``: reading and writing them, without any rule."""

from collections.abc import Sequence
from typing import Any

from tickwright.capabilities.fanout.entities.requests import NewEntity
from tickwright.domain.errors import Rejected
from tickwright.store.pool import Connection
from tickwright.store.queries import load

SQL = load("tickwright.capabilities.fanout.sql", "entities.sql")


async def put(connection: Connection, new: NewEntity) -> bool:
    """Create an entity or set it whole; return whether it is new.

    Raises:
        Rejected: ``unknown_module``, ``unknown_partner``. Permanent until somebody sets them up.
    """
    known = await connection.fetchrow(SQL["known"], new.partner)
    check_known(new, known["modules"], partner=known["partner"])
    row = await connection.fetchrow(
        SQL["put_entity"], new.code, new.party, new.is_polling_enabled, ",".join(new.modules), new.partner
    )
    return row is not None and bool(row["created"])


async def put_many(connection: Connection, batch: Sequence[NewEntity]) -> int:
    """Create many or set them whole, each code once; return how many are new."""
    created: int = await connection.fetchval(
        SQL["put_entities"],
        [new.code for new in batch],
        [new.party for new in batch],
        [new.is_polling_enabled for new in batch],
        [",".join(new.modules) for new in batch],
        [new.partner for new in batch],
    )
    return created


async def known_names(connection: Connection) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of all modules and of all partners."""
    row = await connection.fetchrow(SQL["known_names"])
    return frozenset(row["modules"]), frozenset(row["partners"])


def check_known(new: NewEntity, modules: Any, *, partner: bool) -> None:
    """Refuse an entity with modules that nobody has set up, or a partner who is not there.

    Raises:
        Rejected: ``unknown_module``, ``unknown_partner``. Permanent until somebody sets them up.
    """
    unknown = next((name for name in new.modules if name not in modules), None)
    if unknown is not None:
        known = ", ".join(sorted(modules)) or "none yet"
        raise Rejected(
            "unknown_module",
            f"there is no module {unknown}; known: {known}; another one comes with tickwright modules put",
            field="polling_enabled_modules",
            known=sorted(modules),
        )
    if not partner:
        raise Rejected(
            "unknown_partner", f"there is no partner {new.partner!r}; tickwright partners put", field="partner"
        )
