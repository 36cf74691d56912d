"""What a process says of itself with each heartbeat; a value that fails is left out and does not end the heartbeat."""

import json
from collections.abc import Mapping
from typing import Any

from tickwright.domain.strict_json import loads
from tickwright.observe.isolation import Isolation


class Facts:
    """Reads values by name: what PostgreSQL stores as ``jsonb``, in this order as far as ``bytes_max`` suffices."""

    def __init__(self, event: str, *, bytes_max: float = float("inf")) -> None:
        self._isolation, self._bytes_max = Isolation(event), bytes_max

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the present values; a function is called for its value."""
        found, room = {}, self._bytes_max
        for name, value in list(values.items()):
            with self._isolation.part(name):
                encoded = json.dumps(value() if callable(value) else value, allow_nan=False).encode()
                if len(encoded) > room:
                    raise OverflowError(f"{len(encoded)} bytes, and {room} are left")
                found[name] = loads(encoded)
                room -= len(encoded)
        return found
