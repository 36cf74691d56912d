"""Rates as people write them: ``"50/s"``, ``"10/min"``, ``"3/h"``. A bare number is refused: it has no unit."""

import re
from typing import Any

from tickwright.domain.errors import Rejected

RATE_PER_S_MAX = 100_000.0
RATE_PER_S_MIN = 0.0001
"""One in 10,000 seconds: the distance between two instants at a lower rate need not fit into a timestamp."""
_RATE = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*/\s*(?P<unit>s|sec|second|m|min|minute|h|hour)")
_UNIT_S = {"s": 1, "m": 60, "h": 3600}


def parse_rate(value: Any) -> tuple[float, int]:
    """Return the rate that ``value`` says as a count and the seconds in which it may happen.

    Raises:
        Rejected: ``invalid_value``. Permanent.
    """
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise Rejected("invalid_value", 'write a rate with its unit, such as "50/s", "10/min" or "3/h"')
    count, unit_s = float(match["count"]), _UNIT_S[match["unit"][0]]
    if not RATE_PER_S_MIN <= round(count / unit_s, 9) <= RATE_PER_S_MAX:
        raise Rejected("invalid_value", f"at least {RATE_PER_S_MIN}/s (0.36/h) and at most {RATE_PER_S_MAX:.0f}/s")
    return count, unit_s
