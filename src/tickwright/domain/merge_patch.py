"""JSON merge patch (RFC 7396): an edit says what changes and nothing else. Pure."""

from collections.abc import Mapping
from typing import Any


def merged(target: Any, patch: Any) -> Any:
    """Return ``target`` with ``patch`` applied; ``null`` takes a member out, objects are merged, all else replaces.

    Args:
        target: As decoded from JSON; not changed.
        patch: The same.
    """
    if not isinstance(patch, Mapping):
        return patch
    found = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found
