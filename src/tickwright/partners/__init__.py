"""The partner contract: limits that all processes together keep in calls to other companies' services."""

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
