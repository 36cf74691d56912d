"""The port to receivers of alerts, for the broker that delivers to ``alert:NAME``."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

ALERTS = "alert"
"""The scheme of messages to receivers of alerts."""


@dataclass(frozen=True, slots=True)
class AlertEndpoint:
    """The endpoint of one receiver; ``secrets`` sign, newest first, and are never shown."""

    url: str
    secrets: tuple[str, ...] = field(repr=False)


class AlertEndpoints(Protocol):
    """URLs and secrets of receivers, as they are when a message is sent."""

    async def endpoints(self, names: Collection[str]) -> Mapping[str, AlertEndpoint]:
        """Return the existing receivers among ``names``. Raises errors of the database: retry."""
