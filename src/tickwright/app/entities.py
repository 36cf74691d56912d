"""Entities that fan-out polls, as ``app.entities``: set and read from a program.

Bounds and errors are those of REST. A change is recorded in the audit trail under the name ``python``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tickwright.app.payloads import to_json
from tickwright.capabilities.fanout.entities.entities import EntityQuery
from tickwright.capabilities.fanout.entities.schemas import (
    EntityDetail,
    EntityExplanation,
    EntityRequest,
    EntityView,
    StoredEntity,
)
from tickwright.capabilities.fanout.service import FanoutService
from tickwright.domain import strict_json
from tickwright.domain.errors import Rejected
from tickwright.ports.caller import Caller
from tickwright.ports.views import Page
from tickwright.store.paging import LIMIT_DEFAULT


class Entities:
    """Common operations on entities; imports and modules are in ``app.entities.service``."""

    def __init__(self, service: FanoutService, caller: Caller) -> None:
        self.service, self._caller = service, caller

    async def put(
        self,
        code: str,
        *,
        party: Mapping[str, Any] | None = None,
        modules: str | Sequence[str] = (),
        partner: str | None = None,
        enabled: bool = True,
    ) -> StoredEntity:
        """Create or replace an entity. Schedulers use the change at once. Repeating a call changes nothing.

        Args:
            code: 1 to 100 letters, digits or ``_ . * @ + -``.
            party: Copied into every message; secrets are written ``${env:NAME}``. At most 64 KiB as JSON.
            modules: ``"LOCATIONS,TARIFFS"``, or their names.
            partner: The partner whose limits apply to its calls.
            enabled: Whether it is polled.

        Raises:
            Rejected: ``invalid_entity_code``, ``unknown_module``, ``unknown_partner``, ``plain_secret``,
                ``party_too_large``, or the error of a party like that of a payload in ``schedule``. Permanent.
        """
        request = EntityRequest(
            party=_document(party or {}),
            is_polling_enabled=enabled,
            polling_enabled_modules=modules if isinstance(modules, str) else list(modules),
            partner=partner,
        )
        return await self.service.entities.put(code, request, caller=self._caller)

    async def get(self, code: str) -> EntityDetail:
        """Return one entity and the results of its polls. Raises ``Rejected`` (``entity_not_found``)."""
        return await self.service.entities.get(code)

    async def list(
        self,
        *,
        module: str | None = None,
        enabled: bool | None = None,
        q: str = "",
        cursor: str | None = None,
        limit: int = LIMIT_DEFAULT,
    ) -> Page[EntityView]:
        """Return a page of entities by code. Raises ``Rejected`` (``invalid_limit``, ``invalid_cursor``), permanent."""
        return await self.service.entities.list(EntityQuery(module, enabled, q, cursor, limit))

    async def explain(self, code: str, module: str) -> EntityExplanation:
        """Return why it is polled for a module now, or why not. Raises ``Rejected`` (``entity_not_found``)."""
        return await self.service.entities.explain(code, module)

    async def pause(self, code: str) -> EntityView:
        """Stop polling it. Raises ``Rejected`` (``entity_not_found``)."""
        return await self.service.entities.pause(code, caller=self._caller)

    async def enable(self, code: str) -> EntityView:
        """Poll it again. Raises ``Rejected`` (``entity_not_found``)."""
        return await self.service.entities.enable(code, caller=self._caller)

    async def delete(self, code: str) -> None:
        """Stop polling it and delete it. Raises ``Rejected`` (``entity_not_found``)."""
        await self.service.entities.delete(code, caller=self._caller)


def _document(party: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the checks of REST to a program's document."""
    document = strict_json.loads(to_json(party).encode())
    if not isinstance(document, dict):
        raise Rejected("invalid_payload", "party: give a mapping", field="party")
    return document
