"""The partner contract: what every call to somebody else's service keeps to, in all processes together."""

from tickwright.partners.contract import PartnerCall, PartnerContract
from tickwright.partners.outcomes import ANSWERED, Answered, Failed, Outcome, Throttled, outcome_of
from tickwright.partners.permits import Permit
from tickwright.partners.settings import PartnerSettings, check_settings

__all__ = [
    "ANSWERED",
    "Answered",
    "Failed",
    "Outcome",
    "PartnerCall",
    "PartnerContract",
    "PartnerSettings",
    "Permit",
    "Throttled",
    "check_settings",
    "outcome_of",
]
