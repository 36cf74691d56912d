"""Workflows and their nodes as callers see them."""

from datetime import datetime
from typing import Any, ClassVar

import msgspec

from tickwright.ports.views import UserData


class WorkflowView(msgspec.Struct, kw_only=True):
    """A workflow.

    Attributes:
        root_id: The outermost workflow that it is in; itself otherwise.
        parent_id: The workflow that it is in; ``None`` for an outermost one.
        state: ``running``, ``completed`` (every job completed or was skipped), ``failed`` or ``cancelled``.
        nodes: Its jobs and the workflows in it.
        open: Those that have not ended.
        failed: Those that failed.
        cancelled: Those that were cancelled.
        reason: Why it was cancelled: ``deadline``, or ``cancelled``.
    """

    id: int
    root_id: int
    parent_id: int | None
    name: str
    key: str | None
    state: str
    nodes: int
    open: int
    failed: int
    cancelled: int
    created_at: datetime
    deadline_at: datetime | None
    ended_at: datetime | None
    cancelled_at: datetime | None
    reason: str | None


class NodeResult(msgspec.Struct, UserData, kw_only=True):
    """What a predecessor of a job returned.

    Attributes:
        status: How it ended.
        result: Decoded; ``None`` where it returned none, or did not complete.
    """

    USER_DATA: ClassVar[tuple[str, ...]] = ("result",)

    id: int
    name: str
    status: str | None
    result: Any
    payload_hidden: bool = False


class WorkflowAction(msgspec.Struct, kw_only=True):
    """What an action did.

    Attributes:
        outcome: ``cancelled``: jobs that waited or were pending have ended, and running ones are asked to stop; or
            ``retried``.
        jobs: How many jobs it concerns.
    """

    id: int
    state: str
    outcome: str
    jobs: int
