"""The roles of a process, collected from plugins without loading a role."""

from collections.abc import Sequence

from tickwright.domain.errors import Rejected
from tickwright.process.plugins import PLUGINS

API = "api"
ROLES = (*(role for plugin in PLUGINS for role in plugin.roles), API)


def check_roles(roles: Sequence[str]) -> tuple[str, ...]:
    """Return ``roles`` without repetition.

    Raises:
        Rejected: ``unknown_role``. Permanent.
    """
    for role in roles:
        if role not in ROLES:
            raise Rejected("unknown_role", f"there is no role {role!r}; roles: {', '.join(ROLES)}")
    return tuple(dict.fromkeys(roles))
