"""Workflows, their graphs and the nodes of these as operators see them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tickwright.capabilities.jobs.workflows.views import WorkflowView
from tickwright.ports.views import Reason


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
        kind: The task type; empty for inner workflows, and for a range of levels of all types.
        within: The names of the inner workflows around it, the outermost first.
        name: Of the only node; or that of all its nodes, with ``#`` for numbers; null where these differ.
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


class GraphNode(msgspec.Struct, kw_only=True):
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


class GraphNodeDetail(GraphNode, kw_only=True):
    """A node with its neighbours, at most 100 of each side: first those that failed, then those that have not ended."""

    root_id: int
    workflow_name: str
    predecessors: list[GraphNode]
    predecessors_total: int
    predecessors_not_completed: int
    successors: list[GraphNode]
    successors_total: int


class WorkflowExplanation(msgspec.Struct):
    """Why a workflow is in its state, and what it waits for now."""

    id: int
    status: str
    summary: str
    reasons: list[Reason]


def graph_node(row: Mapping[str, Any]) -> GraphNode:
    """Return a row as a node."""
    return GraphNode(**{name: row[name] for name in GraphNode.__struct_fields__})
