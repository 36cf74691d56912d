"""Workflows as operators see them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from tickwright.ports.views import Reason


class WorkflowView(msgspec.Struct, kw_only=True):
    """A workflow in a list.

    Attributes:
        root_id: The outermost workflow; ``parent_id``: the one that it is directly inside of.
        state: ``running``, ``completed``, ``failed`` or ``cancelled``.
        nodes: Its jobs and the workflows directly inside of it.
        open: How many of these have not ended.
        reason: ``deadline`` where that ended it.
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


class WorkflowPage(msgspec.Struct):
    """One page of workflows; ``searched`` rows were read. A page may be short or empty and still have a ``next``."""

    items: list[WorkflowView]
    next: str | None = None
    searched: int = 0


class WorkflowDetail(WorkflowView, kw_only=True):
    """A workflow with its jobs by state, those of the workflows inside of it included."""

    states: dict[str, int]


class CreatedWorkflow(msgspec.Struct):
    """The added workflow; ``created`` is false when an earlier request with its key added it."""

    id: int
    created: bool


class GraphGroup(msgspec.Struct, kw_only=True):
    """Nodes of one kind that wait for the same.

    Attributes:
        id: The lowest id of its nodes. It does not change, so that it names the group in requests.
        kind: The task type; of inner workflows the name with ``#`` for numbers; empty for a range of all types.
        within: The names of the inner workflows around it, the outermost first.
        name: Of the only node.
        level: The longest way to it, from 0; ``last_level`` where it is a range.
        states: How many of its nodes are in which state.
    """

    id: int
    kind: str
    within: list[str]
    is_workflow: bool
    name: str | None
    level: int
    last_level: int
    nodes: int
    states: dict[str, int]


class GraphEdge(msgspec.Struct):
    """A group that waits for another one."""

    from_id: int
    to_id: int


class GraphView(msgspec.Struct, kw_only=True):
    """The graph of a workflow in at most 200 groups and 2,000 edges.

    Attributes:
        is_coarse: Groups are ranges of levels, because there are too many kinds of nodes.
        edges_cut: There are more edges.
    """

    id: int
    name: str
    state: str
    nodes: int
    groups: list[GraphGroup]
    edges: list[GraphEdge]
    is_coarse: bool
    edges_cut: bool


class NodeView(msgspec.Struct, kw_only=True):
    """A node: a job, or an inner workflow.

    Attributes:
        status: ``waiting``, ``pending``, ``processing``, ``completed``, ``failed``, ``cancelled`` or ``skipped``; an
            inner workflow is ``running`` before its end.
        on_failed: What it does where a node that it waits for does not complete: ``cancel``, ``wait``, ``run`` or
            ``only``.
    """

    id: int
    name: str
    task_type: str | None
    workflow_id: int
    is_workflow: bool
    status: str
    on_failed: str


class NodeDetail(NodeView, kw_only=True):
    """A node with its neighbours, at most 100 of each side: first those that failed, then those that have not ended."""

    root_id: int
    workflow_name: str
    predecessors: list[NodeView]
    predecessors_total: int
    predecessors_not_completed: int
    successors: list[NodeView]
    successors_total: int


class WorkflowExplanation(msgspec.Struct):
    """Why a workflow is in its state, and what it waits for now."""

    id: int
    status: str
    summary: str
    reasons: list[Reason]


def workflow_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of :class:`WorkflowView` of a row."""
    return {name: row[name] for name in WorkflowView.__struct_fields__}


def node_view(row: Mapping[str, Any]) -> NodeView:
    """Return a row as a node."""
    return NodeView(**{name: row[name] for name in NodeView.__struct_fields__})
