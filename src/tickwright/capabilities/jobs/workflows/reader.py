"""Workflows for operators: search, counts by state, the collapsed graph, nodes with their neighbours, explain.

What a workflow consists of does not change once it is added, so its graph is built once and kept; a request then reads
a letter for the state of each node. Building reads pages of nodes, between which other requests have their turns.
"""

import asyncio
from array import array
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tickwright.capabilities.jobs.admin.search import read_rows
from tickwright.capabilities.jobs.workflows.explain import NAMED_MAX, explain_workflow
from tickwright.capabilities.jobs.workflows.graph import Graph, GraphBuilder
from tickwright.capabilities.jobs.workflows.graph_views import (
    GraphEdge,
    GraphGroup,
    GraphNode,
    GraphNodeDetail,
    GraphView,
    WorkflowDetail,
    WorkflowExplanation,
    WorkflowPage,
    graph_node,
)
from tickwright.capabilities.jobs.workflows.queries import SQL, fetch_indexed
from tickwright.capabilities.jobs.workflows.views import WorkflowView
from tickwright.domain.errors import Rejected
from tickwright.ports.views import Page, view
from tickwright.store.bounds import within
from tickwright.store.paging import LIMIT_DEFAULT, NEWEST, Cursors, checked_limit
from tickwright.store.pool import Pool

READ_MAX = 20_000
NODES_AT_ONCE = 5_000
NEIGHBOURS_MAX = 100
NAMED_NODES_MAX = 10_000
KEPT_NODES_MAX = 1_000_000
"""Of all kept graphs: 12 bytes a node."""
AFTER_ALL = "\U0010ffff"
FAILED_READ_MAX = 1_000
BUILD_S = 20.0


@dataclass(frozen=True, slots=True)
class WorkflowFilter:
    """Which workflows a list means; a field that is left out matches every one.

    Attributes:
        text: A part of the name or the key, in any case.
        created_from: Inclusive; ``created_to`` is exclusive.
    """

    states: tuple[str, ...] = ()
    text: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Which nodes of a workflow a list means.

    Attributes:
        states: All by default.
        group_id: Of the graph.
        begins: What the names begin with; among the first 10,000 of these.
    """

    states: tuple[str, ...] = ()
    group_id: int | None = None
    begins: str = ""


class WorkflowReader:
    """Reads workflows; one per process and pool.

    Raises:
        Rejected: ``workflow_not_found`` (404) from every method with an id. Permanent.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._cursors = Cursors(pool)
        self._graphs: OrderedDict[int, Graph] = OrderedDict()

    async def page(
        self, which: WorkflowFilter, *, cursor: str | None = None, limit: int = LIMIT_DEFAULT
    ) -> WorkflowPage:
        """Return one page of the outermost workflows, newest first; at most 20,000 rows are read.

        Raises:
            Rejected: ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = checked_limit(limit)
        listing = ("workflows", list(which.states), which.text, which.created_from, which.created_to)
        before = NEWEST if cursor is None else await self._cursors.read(cursor, int, *listing)
        rows = await fetch_indexed(
            self._pool, SQL["search"], list(which.states) or None, _pattern(which.text), which.created_from,
            which.created_to, before, READ_MAX, limit + 1,
        )  # fmt: skip
        found = read_rows(rows, READ_MAX, limit, down=True)
        read = await self._pool.fetch(SQL["get_many"], found.ids) if found.ids else []
        more = None if found.position is None else await self._cursors.make(found.position, *listing)
        return WorkflowPage([view(WorkflowView, row) for row in read], more, found.searched)

    async def detail(self, workflow_id: int) -> WorkflowDetail:
        """Return one workflow with its jobs by state."""
        row = await self._row(workflow_id)
        counts = await self._counts(row)
        return view(WorkflowDetail, row, states=dict(counts))

    async def graph(self, workflow_id: int) -> GraphView:
        """Return the collapsed graph: at most 200 groups, with their nodes by state."""
        row = await self._row(workflow_id)
        graph = await self._graph_of(row)
        counts = graph.count(await self._letters(row))
        alone = [group.first_id for group in graph.groups if group.nodes == 1]
        names = {found["id"]: found["name"] for found in await self._nodes(alone)}
        return GraphView(
            id=row["id"],
            name=row["name"],
            state=row["state"],
            nodes=graph.nodes,
            groups=[
                GraphGroup(
                    id=group.first_id,
                    kind=group.kind,
                    within=list(group.within),
                    is_workflow=group.is_workflow,
                    name=names.get(group.first_id, group.name) or None,
                    level=group.levels[0],
                    last_level=group.levels[1],
                    nodes=group.nodes,
                    states=dict(states),
                )
                for group, states in zip(graph.groups, counts, strict=True)
            ],
            edges=[
                GraphEdge(graph.groups[before].first_id, graph.groups[after].first_id) for before, after in graph.edges
            ],
            is_coarse=graph.is_coarse,
            edges_cut=graph.edges_cut,
        )

    async def nodes(
        self, workflow_id: int, which: NodeFilter, *, cursor: str | None = None, limit: int = LIMIT_DEFAULT
    ) -> Page[GraphNode]:
        """Return one page of the nodes of a workflow, the outermost or an inner one, in the order of the definition.

        Raises:
            Rejected: ``group_not_found`` (404), ``invalid_limit``, ``invalid_cursor``. Permanent.
        """
        limit = checked_limit(limit)
        listing = ("nodes", workflow_id, list(which.states), which.group_id, which.begins)
        after = 0 if cursor is None else await self._cursors.read(cursor, int, *listing)
        row = await self._row(workflow_id)
        graph = await self._graph_of(row)
        group = None if which.group_id is None else graph.group_with(which.group_id)
        if which.group_id is not None and group is None:
            raise Rejected("group_not_found", f"workflow {workflow_id} has no group {which.group_id}", status=404)
        found = graph.select(await self._letters(row), which.states, group, after)
        if which.begins:
            named = await fetch_indexed(
                self._pool, SQL["named"], row["root_id"], which.begins, which.begins + AFTER_ALL, NAMED_NODES_MAX
            )
            some = {one["id"] for one in named}
            found = (node_id for node_id in found if node_id in some)
        ids = [node_id for node_id, _ in zip(found, range(limit + 1), strict=False)]
        items = [graph_node(one) for one in await self._nodes(ids[:limit])]
        more = await self._cursors.make(ids[limit - 1], *listing) if len(ids) > limit else None
        return Page(items, more)

    async def node(self, workflow_id: int, node_id: int) -> GraphNodeDetail:
        """Return a node with what it waits for and what waits for it.

        Raises:
            Rejected: ``node_not_found`` (404). Permanent.
        """
        row = await self._row(workflow_id)
        node = await self._pool.fetchrow(SQL["node_of"], node_id)
        if node is None or node["root_id"] != row["root_id"]:
            raise Rejected("node_not_found", f"workflow {workflow_id} has no node {node_id}", status=404)
        own = row if node["workflow_id"] == row["id"] else await self._row(node["workflow_id"])
        before = await fetch_indexed(self._pool, SQL["predecessors"], node_id, NEIGHBOURS_MAX)
        behind = await fetch_indexed(self._pool, SQL["successors"], node_id, NEIGHBOURS_MAX)
        shown = {name: node[name] for name in GraphNode.__struct_fields__}
        return GraphNodeDetail(
            **shown,
            root_id=node["root_id"],
            workflow_name=own["name"],
            predecessors=[graph_node(one) for one in before],
            predecessors_total=before[0]["total"] if before else 0,
            predecessors_not_completed=before[0]["not_completed"] if before else 0,
            successors=[graph_node(one) for one in behind],
            successors_total=behind[0]["total"] if behind else 0,
        )

    async def explain(self, workflow_id: int) -> WorkflowExplanation:
        """Return why a workflow is in its state, and which of its jobs it waits for."""
        row = await self._row(workflow_id)
        graph, letters = await self._graph_of(row), await self._letters(row)
        states = sum(graph.count(letters), Counter[str]())
        bounds = row["root_id"], row["id"], row["last_id"]
        live: Sequence[Any] = ()
        blocking: Sequence[Any] = ()
        if row["ended_at"] is None:
            live = await fetch_indexed(self._pool, SQL["live"], *bounds, NAMED_MAX)
            held = graph.select(letters, ("failed", "cancelled"), None, 0)
            ids = [one for one, _ in zip(held, range(FAILED_READ_MAX), strict=False)]
            blocking = await self._pool.fetch(SQL["blocking"], row["root_id"], ids, NAMED_MAX) if ids else []
        failed = [one for one, _ in zip(graph.select(letters, ("failed",), None, 0), range(NAMED_MAX), strict=False)]
        reasons = explain_workflow(row, states, live, blocking, await self._with_errors(failed))
        return WorkflowExplanation(row["id"], row["state"], reasons[0].text, reasons)

    async def _with_errors(self, ids: list[int]) -> list[Mapping[str, Any]]:
        """Return nodes with the last errors of their jobs."""
        if not ids:
            return []
        errors = {row["id"]: row["error"] for row in await self._pool.fetch(SQL["job_errors"], ids)}
        return [
            {"id": one["id"], "name": one["name"], "error": errors.get(one["id"])} for one in await self._nodes(ids)
        ]

    async def _row(self, workflow_id: int) -> Any:
        row = await self._pool.fetchrow(SQL["get"], workflow_id)
        if row is None:
            raise Rejected("workflow_not_found", f"there is no workflow {workflow_id}", status=404)
        return row

    async def _counts(self, row: Any) -> Counter[str]:
        graph = await self._graph_of(row)
        return sum(graph.count(await self._letters(row)), Counter[str]())

    async def _nodes(self, ids: Sequence[int]) -> Sequence[Any]:
        if not ids:
            return []
        rows: Sequence[Any] = await self._pool.fetch(SQL["nodes"], list(ids))
        return rows

    async def _letters(self, row: Any) -> str:
        """Return a letter for the state of each node in a workflow's range, in the order of the graph's ids."""
        with within(BUILD_S):  # of which the graph may have used up the time of the request
            [found] = await fetch_indexed(self._pool, SQL["states"], row["root_id"], row["id"], row["last_id"])
        return str(found["states"])

    async def _graph_of(self, row: Any) -> Graph:
        """Return the graph of a workflow: the kept one, or a new one."""
        workflow_id = row["id"]
        if (kept := self._graphs.get(workflow_id)) is not None:
            self._graphs.move_to_end(workflow_id)
            return kept
        with within(BUILD_S):  # most of it is not one slow statement, which the time of a request is meant for
            graph = await self._build(row)
        self._graphs[workflow_id] = graph
        while len(self._graphs) > 1 and sum(len(one.ids) for one in self._graphs.values()) > KEPT_NODES_MAX:
            self._graphs.popitem(last=False)
        return graph

    async def _build(self, row: Any) -> Graph:
        graph = await self._build_by(row, by_name=True)
        return graph or await self._build_by(row, by_name=False) or Graph([], [], array("q"), array("i"))

    async def _build_by(self, row: Any, *, by_name: bool) -> Graph | None:
        """Return the graph; ``None`` where names count and there are too many."""
        builder, after = GraphBuilder(row["id"], by_name=by_name), row["id"]
        while True:
            rows = await fetch_indexed(
                self._pool, SQL["structure"], row["root_id"], after, row["last_id"], NODES_AT_ONCE
            )
            builder.add(rows)
            if builder.has_too_many_names:
                return None
            if len(rows) < NODES_AT_ONCE:
                return await asyncio.to_thread(builder.graph)
            after = rows[-1]["id"]


def _pattern(text: str | None) -> str | None:
    """Return the ``ILIKE`` pattern for a part of a text."""
    if text is None:
        return None
    plain = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{plain}%"
