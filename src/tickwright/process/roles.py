"""What a process can be; in a module of its own, so that the command line knows it without loading a role."""

from collections.abc import Sequence

from tickwright.domain.errors import Rejected

ROLES = (
    "worker",
    "scheduler",
    "relay",
    "poll-consumer",
    "fanout-consumer",
    "report-listener",
    "campaign-consumer",
    "api",
)


def check_roles(roles: Sequence[str]) -> tuple[str, ...]:
    """Return ``roles`` without repetition.

    Raises:
        Rejected: ``unknown_role``. Permanent.
    """
    for role in roles:
        if role not in ROLES:
            raise Rejected("unknown_role", f"there is no role {role!r}; roles: {', '.join(ROLES)}")
    return tuple(dict.fromkeys(roles))
