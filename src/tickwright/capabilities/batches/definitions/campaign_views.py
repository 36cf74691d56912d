"""What callers get to see of campaigns beside what every batch shows."""

from typing import Any, ClassVar

import msgspec

from tickwright.capabilities.batches.definitions.problems import Mistake
from tickwright.capabilities.batches.views import BatchDetail
from tickwright.ports.user_data import UserData


class StoredCampaign(msgspec.Struct):
    """The answer to a put; ``changed`` is false where it was so already, and then it is no new version."""

    campaign: BatchDetail
    created: bool
    changed: bool


class CheckedCampaign(msgspec.Struct):
    """What is wrong with a definition: nothing, where it is valid."""

    valid: bool
    problems: list[Mistake]


class SelectedClient(msgspec.Struct, UserData):
    """One client who would be selected, as an action would tell of him."""

    USER_DATA: ClassVar[tuple[str, ...]] = ("client",)
    client_id: str
    client: Any
    payload_hidden: bool = False


class DryRun(msgspec.Struct, kw_only=True):
    """What an execution would do now, without doing it.

    Attributes:
        members: Of the audience.
        selected: Whom the expression selects.
        missing: Not selected because a field that decides is not there.
        skipped: Could not be judged.
        examples: Up to ten of the selected.
        problems: Up to ten of the skipped, each with its ``client_id``.
    """

    members: int
    selected: int
    missing: int
    skipped: int
    examples: list[SelectedClient]
    problems: list[dict[str, str]]
