"""The graph of a workflow, collapsed: nodes of the same kind that wait for the same are one group. Pure.

A workflow may have 200,000 jobs, and a picture a few hundred boxes. So nodes are grouped by their type, their name
without its numbers, their inner workflow and the groups of what they wait for: a fan-out is one group, and a thousand
equal chains of a hundred jobs are a hundred groups. Where that leaves more than ``GROUPS_MAX``, names do not count; and
where that is too many, too, such as for one chain of 100,000 jobs, a group is a range of levels of one type. The level
of a node is the longest way to it.

The nodes come in the order of their ids, which is that of the definition: each behind those that it waits for. An inner
workflow has a lower id than its jobs, and what waits for it a higher one.
"""

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

GROUPS_MAX = 200
COARSE_GROUPS_MAX = 60
EDGES_MAX = 2_000
PATH_MAX = 3
"""Names of inner workflows around a node, the innermost ones, that tell groups apart."""
STATES = {
    "w": "waiting",
    "p": "pending",
    "r": "processing",
    "o": "running",
    "c": "completed",
    "f": "failed",
    "x": "cancelled",
    "s": "skipped",
}
"""The letters of the query ``states``."""
LETTERS = {state: letter for letter, state in STATES.items()}
NO_GROUP = -1
_NUMBER = re.compile(r"[0-9]+")
_DEFAULT_END = re.compile(r"(-[0-9]+)?")


@dataclass(slots=True)
class NodeGroup:
    """Nodes of one kind that wait for the same.

    Attributes:
        kind: The task type; empty for inner workflows, and for a range of levels of all types.
        name: In which ``#`` replaces numbers; empty where names do not count.
        within: The names of the inner workflows around it, the outermost first, likewise.
        levels: The first and the last.
        first_id: The lowest id of its nodes, which identifies the group.
    """

    kind: str
    name: str
    within: tuple[str, ...]
    is_workflow: bool
    levels: tuple[int, int]
    first_id: int
    nodes: int = 0


@dataclass(slots=True)
class Graph:
    """The groups of a workflow, in the order of their first nodes.

    Attributes:
        edges: From a group to one that waits for it.
        ids: Of every node in its range, also those of other inner workflows.
        group_of: The group of each of ``ids``; ``NO_GROUP`` for those that are not part of it.
        is_coarse: Whether a group is a range of levels.
        edges_cut: Whether there are more edges than ``EDGES_MAX``.
    """

    groups: list[NodeGroup]
    edges: list[tuple[int, int]]
    ids: "array[int]"
    group_of: "array[int]"
    is_coarse: bool = False
    edges_cut: bool = False

    @property
    def nodes(self) -> int:
        """How many nodes it has."""
        return sum(group.nodes for group in self.groups)

    def count(self, letters: str) -> list[Counter[str]]:
        """Return how many nodes of each group are in which state, by a letter for each of ``ids``."""
        counted = [Counter[str]() for _ in self.groups]
        for (group, letter), nodes in Counter(zip(self.group_of, letters, strict=False)).items():
            if group != NO_GROUP:
                counted[group][STATES[letter]] += nodes
        return counted

    def select(self, letters: str, wanted: Iterable[str], group: int | None, after: int) -> Iterator[int]:
        """Yield the ids of nodes in these states (all: none given), of one group or all, above an id."""
        some = {LETTERS[state] for state in wanted} or set(STATES)
        for node_id, own, letter in zip(self.ids, self.group_of, letters, strict=False):
            if node_id > after and letter in some and (own != NO_GROUP if group is None else own == group):
                yield node_id

    def group_with(self, first_id: int) -> int | None:
        """Return the group that an id identifies."""
        return next((number for number, group in enumerate(self.groups) if group.first_id == first_id), None)


@dataclass(slots=True)
class _Inner:
    """A workflow that is being read: its place among the nodes, the groups in it, and the group of its end."""

    parent: int
    name: str
    path: tuple[str, ...]
    start: int
    members: set[int] = field(default_factory=set)
    inner: list[int] = field(default_factory=list)
    end: int = NO_GROUP


_Key = tuple[str, str, tuple[str, ...], bool, frozenset[int]]


class GraphBuilder:
    """Builds the graph of one workflow from its nodes, page by page.

    Args:
        workflow_id: The outermost, or an inner one, whose graph has only what is inside of it.
        by_name: Whether names count.
    """

    def __init__(self, workflow_id: int, *, by_name: bool = True) -> None:
        self._root, self._by_name = workflow_id, by_name
        self._inner = {workflow_id: _Inner(0, "", (), NO_GROUP)}
        self._groups: list[NodeGroup] = []
        self._waits: list[frozenset[int]] = []
        self._keys: dict[_Key, int] = {}
        self._group_by_id: dict[int, int] = {}
        self._ids = array("q")
        self._group_of = array("i")

    @property
    def has_too_many_names(self) -> bool:
        """Whether names count, and there are so many groups that they should not."""
        return self._by_name and len(self._groups) > GROUPS_MAX

    def add(self, rows: Iterable[tuple[int, int, bool, str, str, Sequence[int]]]) -> None:
        """Add nodes: id, workflow, whether it is one, name, type, what it waits for; in the order of their ids."""
        for node_id, workflow_id, is_workflow, name, kind, predecessors in rows:
            around = self._inner.get(workflow_id)
            self._ids.append(node_id)
            self._group_of.append(NO_GROUP)
            if around is None:
                continue
            if is_workflow:
                shape = _NUMBER.sub("#", name) if self._by_name else ""
                path = (*around.path[1 - PATH_MAX :], shape)
                self._inner[node_id] = _Inner(workflow_id, shape, path, len(self._ids) - 1)
                around.inner.append(node_id)
                continue
            waits = frozenset(group for one in predecessors if (group := self._found(one)) != NO_GROUP)
            group = self._in_group((kind, self._shape_of(name, kind), around.path, False, waits), node_id)
            around.members.add(group)
            self._group_by_id[node_id] = self._group_of[-1] = group

    def graph(self) -> Graph:
        """Return the graph of the nodes that were added."""
        self._end(self._root)
        edges = sorted({(before, after) for after, waits in enumerate(self._waits) for before in waits})
        graph = Graph(self._groups, edges, self._ids, self._group_of)
        return _limited(graph if len(self._groups) <= GROUPS_MAX else _coarse(graph))

    def _shape_of(self, name: str, kind: str) -> str:
        """Return a name without its numbers; the type where a job has its default name."""
        if not self._by_name:
            return ""
        return kind if name.startswith(kind) and _DEFAULT_END.fullmatch(name, len(kind)) else _NUMBER.sub("#", name)

    def _found(self, node_id: int) -> int:
        """Return the group of a node that another one waits for; that of an inner workflow once it is complete."""
        inner = self._inner.get(node_id)
        if inner is None:
            return self._group_by_id.get(node_id, NO_GROUP)
        if inner.end == NO_GROUP:
            self._end(node_id)
        return inner.end

    def _end(self, workflow_id: int) -> None:
        """Give the end of a complete workflow, and first those inside of it, their groups."""
        left = [workflow_id]
        while left:
            open_inside = [one for one in self._inner[left[-1]].inner if self._inner[one].end == NO_GROUP]
            if open_inside:
                left += open_inside
                continue
            node_id = left.pop()
            inner = self._inner[node_id]
            if node_id == self._root or inner.end != NO_GROUP:
                continue
            members = inner.members | {self._inner[one].end for one in inner.inner}
            last = members - {before for one in members for before in self._waits[one]}
            around = self._inner[inner.parent].path
            inner.end = self._in_group(("", inner.name, around, True, frozenset(last)), node_id)
            self._group_of[inner.start] = inner.end

    def _in_group(self, key: _Key, node_id: int) -> int:
        found = self._keys.get(key)
        if found is None:
            kind, name, within, is_workflow, waits = key
            level = 1 + max((self._groups[one].levels[0] for one in waits), default=-1)
            found = self._keys[key] = len(self._groups)
            self._groups.append(
                NodeGroup(kind, name, tuple(filter(None, within)), is_workflow, (level, level), node_id)
            )
            self._waits.append(waits)
        self._groups[found].nodes += 1
        return found


def _coarse(graph: Graph) -> Graph:
    """Return the graph with groups that are ranges of levels of one kind, or of all kinds where there are too many."""
    deepest = max(group.levels[1] for group in graph.groups)
    width, by_kind = 1, True
    while True:
        keys = {_range(group, width, by_kind=by_kind) for group in graph.groups}
        if len(keys) <= (GROUPS_MAX if width == 1 else COARSE_GROUPS_MAX):
            break
        if width <= deepest:
            width = max(width, (deepest + 1) // COARSE_GROUPS_MAX) * 2
        else:
            width, by_kind = 1, False
    place: dict[tuple[int, str, bool], int] = {}
    merged: list[NodeGroup] = []
    now = array("i")
    for group in graph.groups:
        key = _range(group, width, by_kind=by_kind)
        if key not in place:
            place[key] = len(merged)
            merged.append(NodeGroup(key[1], "", (), key[2], group.levels, group.first_id))
        into = merged[place[key]]
        into.nodes += group.nodes
        into.levels = min(into.levels[0], group.levels[0]), max(into.levels[1], group.levels[1])
        into.first_id = min(into.first_id, group.first_id)
        now.append(place[key])
    both = {(now[before], now[after]) for before, after in graph.edges}
    edges = [edge for edge in both if merged[edge[0]].levels[0] < merged[edge[1]].levels[0]]
    group_of = array("i", (one if one == NO_GROUP else now[one] for one in graph.group_of))
    return Graph(merged, sorted(edges), graph.ids, group_of, is_coarse=True)


def _range(group: NodeGroup, width: int, *, by_kind: bool) -> tuple[int, str, bool]:
    kind = (group.kind, group.is_workflow) if by_kind else ("", False)
    return group.levels[0] // width, *kind


def _limited(graph: Graph) -> Graph:
    """Leave out edges above the limit, the longest first: a box behind another one stays connected to it."""
    if len(graph.edges) > EDGES_MAX:
        length = {edge: graph.groups[edge[1]].levels[0] - graph.groups[edge[0]].levels[0] for edge in graph.edges}
        graph.edges = sorted(sorted(graph.edges, key=length.__getitem__)[:EDGES_MAX])
        graph.edges_cut = True
    return graph
