"""Partners as operators see them: within which limits they are called, and whether at all.

Who is paused is read with every selection, settings with every exchange of the contract: a change counts within
seconds, in every process, without a restart.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tickwright.capabilities.polling.consumer.courier_schema import read_http
from tickwright.capabilities.polling.trackers.requests import check_partner
from tickwright.capabilities.polling.trackers.views import PartnerView, StoredPartner
from tickwright.domain.errors import Rejected
from tickwright.domain.merge_patch import merged
from tickwright.partners.settings import read_settings
from tickwright.ports.caller import Caller
from tickwright.ports.views import view
from tickwright.store.audit import write_audit
from tickwright.store.pool import Connection, Pool
from tickwright.store.queries import load

_SQL = load("tickwright.capabilities.polling.sql", "accounts.sql")


class Partners:
    """The rows of ``tickwright.partners``."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def list(self) -> list[PartnerView]:
        """Return every partner by name."""
        return [view(PartnerView, row) for row in await self._pool.fetch(_SQL["list_partners"], None)]

    async def get(self, name: str) -> PartnerView:
        """Return one partner.

        Raises:
            Rejected: ``partner_not_found`` (404). Permanent.
        """
        row = await self._pool.fetchrow(_SQL["list_partners"], name)
        if row is None:
            raise _no_partner(name)
        return view(PartnerView, row)

    async def put(self, name: str, settings: Mapping[str, Any], *, caller: Caller) -> StoredPartner:
        """Create a partner or replace its settings; every consumer reads them within seconds.

        Raises:
            Rejected: ``invalid_partner``: the name, or with every mistake in the settings. Permanent.
        """
        check_partner(name)
        check_settings_of_partner(settings)
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, name)
            await connection.execute(_SQL["put_partner"], name, msgspec.json.encode(settings).decode())
            after = await self._written(connection, caller, "put", name, before)
        return StoredPartner(after, before is None)

    async def change(self, name: str, changes: Mapping[str, Any], *, caller: Caller) -> PartnerView:
        """Set what is given of a partner's settings, and nothing else; ``None`` takes a setting out.

        Raises:
            Rejected: ``partner_not_found`` (404), ``invalid_partner`` with every mistake. Permanent.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, name)
            if before is None:
                raise _no_partner(name)
            settings = merged(msgspec.json.decode(before.settings), changes)
            check_settings_of_partner(settings)
            await connection.execute(_SQL["put_partner"], name, msgspec.json.encode(settings).decode())
            return await self._written(connection, caller, "change", name, before)

    async def pause(self, name: str, *, caller: Caller) -> PartnerView:
        """Call it no more, and select none of its trackers. Twice is harmless.

        Raises:
            Rejected: ``partner_not_found`` (404). Permanent.
        """
        return await self._change("pause", name, caller)

    async def enable(self, name: str, *, caller: Caller) -> PartnerView:
        """Call it again.

        Raises:
            Rejected: ``partner_not_found`` (404). Permanent.
        """
        return await self._change("enable", name, caller)

    async def reset(self, name: str, *, caller: Caller) -> PartnerView:
        """Close its breaker, and end the silence that it asked for: whoever does it knows that it works again.

        Raises:
            Rejected: ``partner_not_found`` (404). Permanent.
        """
        return await self._change("reset", name, caller)

    async def _change(self, action: str, name: str, caller: Caller) -> PartnerView:
        async with self._pool.acquire() as connection, connection.transaction():
            before = await self._locked(connection, name)
            if before is None:
                raise _no_partner(name)
            await connection.execute(_SQL[f"{action}_partner"], name)
            return await self._written(connection, caller, action, name, before)

    async def _locked(self, connection: Connection, name: str) -> PartnerView | None:
        await connection.execute(_SQL["lock_partner"], name)
        row = await connection.fetchrow(_SQL["list_partners"], name)
        return None if row is None else view(PartnerView, row)

    async def _written(
        self, connection: Connection, caller: Caller, action: str, name: str, before: PartnerView | None
    ) -> PartnerView:
        after = view(PartnerView, await connection.fetchrow(_SQL["list_partners"], name))
        await write_audit(connection, caller, f"partners.{action}", f"partner:{name}", before=before, after=after)
        return after


def check_settings_of_partner(settings: Mapping[str, Any]) -> None:
    """Refuse settings that whoever calls the partner would not understand.

    Raises:
        Rejected: ``invalid_partner`` with every mistake and its remedy. Permanent.
    """
    problems: list[str] = []
    read = read_settings(settings, problems, where="settings")
    if read.http is not None:
        read_http(read.http, problems, where="settings.http", secrets=lambda _: "")
    if problems:
        raise Rejected("invalid_partner", "\n".join(problems), problems=problems)


def _no_partner(name: str) -> Rejected:
    return Rejected("partner_not_found", f"there is no partner {name[:50]!r}", status=404)
