"""What a check of the doctor found."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer: ``warn`` works with less than it could promise; each but ``ok`` has a remedy."""

    check: str
    verdict: Literal["ok", "warn", "fail"]
    says: str
    remedy: str = ""
