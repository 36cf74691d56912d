"""The rotation of a secret: how long the old one stays valid beside the new one."""

from datetime import timedelta

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.domain.time_texts import DurationText

OVERLAP_DEFAULT = timedelta(hours=24)
OVERLAP_MAX = timedelta(days=30)


class RotateRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How long the old secret stays valid beside the new one; at most 30 days."""

    overlap: DurationText = "24h"


def check_overlap(overlap: timedelta) -> timedelta:
    """Return a valid ``overlap``.

    Raises:
        Rejected: ``invalid_overlap``. Permanent.
    """
    if not timedelta() <= overlap <= OVERLAP_MAX:
        raise Rejected("invalid_overlap", f"overlap: 0s to {OVERLAP_MAX.days}d", field="overlap")
    return overlap
