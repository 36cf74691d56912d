"""Graphs of workflows in groups: what is one group, how many there are at most, and that lines go forward."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickwright.capabilities.jobs.workflows.graph import EDGES_MAX, GROUPS_MAX, NO_GROUP, Graph, GraphBuilder

ROOT = 1
Node = tuple[int, int, bool, str, str, Sequence[int]]


def job(node_id: int, name: str, *after: int, kind: str = "step", inside: int = ROOT) -> Node:
    """Return a job."""
    return node_id, inside, False, name, kind, after


def graph_of(nodes: Sequence[Node], workflow_id: int = ROOT) -> Graph:
    """Build a graph as the reader does: without names where these make too many groups."""
    for by_name in (True, False):
        builder = GraphBuilder(workflow_id, by_name=by_name)
        builder.add(nodes)
        if not builder.has_too_many_names:
            break
    return builder.graph()


def shown(graph: Graph) -> list[tuple[str, int, tuple[int, int]]]:
    """Return the name, the number of nodes and the levels of each group."""
    return [(group.name, group.nodes, group.levels) for group in graph.groups]


def test_a_fan_out_and_its_join_are_three_groups() -> None:
    """The parts differ in their numbers only; a part of another type is a group of its own."""
    parts = [job(number, f"part-{number}", 2) for number in range(3, 53)]
    graph = graph_of([job(2, "split"), *parts, job(60, "part-60", 2, kind="other"), job(61, "join", *range(3, 53))])
    assert shown(graph) == [("split", 1, (0, 0)), ("part-#", 50, (1, 1)), ("part-#", 1, (1, 1)), ("join", 1, (2, 2))]
    assert graph.edges == [(0, 1), (0, 2), (1, 3)]


def test_equal_chains_are_one_chain_of_groups() -> None:
    """A thousand chains of twenty jobs; the default names have numbers, or none for the first job."""
    nodes = []
    for chain in range(1000):
        for place in range(20):
            node_id = 2 + chain * 20 + place
            name = "step" if node_id == 2 else f"step-{node_id}"
            nodes.append(job(node_id, name, *([node_id - 1] if place else [])))
    graph = graph_of(nodes)
    assert shown(graph) == [("step", 1000, (level, level)) for level in range(20)]
    assert graph.edges == [(level, level + 1) for level in range(19)]


def test_the_end_of_an_inner_workflow_is_behind_its_last_jobs() -> None:
    """Also of one that has only another one inside; what waits for it is behind its end."""
    nodes: list[Node] = [
        (2, ROOT, True, "ship", "", ()), (3, 2, True, "inner", "", ()),
        job(4, "pack", inside=3), job(5, "send", 4, inside=3), job(6, "tell", 2),
    ]  # fmt: skip
    graph = graph_of(nodes)
    levels = {group.name: group.levels[0] for group in graph.groups}
    assert levels == {"pack": 0, "send": 1, "inner": 2, "ship": 3, "tell": 4}
    within = {group.name: group.within for group in graph.groups}
    assert within == {"pack": ("ship", "inner"), "send": ("ship", "inner"), "inner": ("ship",), "ship": (), "tell": ()}
    inside = graph_of(nodes[1:], 2)
    assert [group.name for group in inside.groups] == ["pack", "send", "inner"]
    assert inside.group_of[-1] == NO_GROUP


def test_a_long_chain_is_a_bounded_number_of_ranges() -> None:
    """100,000 jobs of which each waits for the one before it."""
    graph = graph_of([job(number, f"step-{number}", number - 1) for number in range(2, 100_002)])
    assert graph.is_coarse
    assert len(graph.groups) <= GROUPS_MAX
    assert graph.nodes == 100_000
    assert [group.levels[0] for group in graph.groups[1:]] == [group.levels[1] + 1 for group in graph.groups[:-1]]


def test_names_that_all_differ_do_not_count() -> None:
    """Nor do they hide the structure."""
    parts = [job(number, f"part {chr(97 + number % 26)}{chr(97 + number // 26)}", 2) for number in range(3, 603)]
    graph = graph_of([job(2, "split", kind="split"), *parts, job(700, "join", *range(3, 603), kind="join")])
    assert [(group.kind, group.nodes) for group in graph.groups] == [("split", 1), ("step", 600), ("join", 1)]
    assert not graph.is_coarse


def test_more_types_than_groups_are_ranges_of_levels() -> None:
    """Of all types together."""
    graph = graph_of([job(number, "x", kind=f"type-{number}") for number in range(2, 402)])
    assert shown(graph) == [("", 400, (0, 0))]


def test_nodes_are_counted_and_selected_by_state() -> None:
    """By a letter for each; those of other workflows do not count."""
    graph = graph_of([job(2, "a"), job(3, "b", 2), job(4, "b", 2), job(5, "a", inside=99)])
    assert graph.count("cfwc") == [Counter(completed=1), Counter(failed=1, waiting=1)]
    assert list(graph.select("cfwc", (), None, 0)) == [2, 3, 4]
    assert list(graph.select("cfwc", ("waiting", "completed"), None, 2)) == [4]
    assert list(graph.select("cfwc", (), graph.group_with(3), 0)) == [3, 4]
    assert graph.group_with(4) is None


@st.composite
def definitions(draw: st.DrawFn) -> list[Node]:
    """Draw nodes in the order of a definition, with inner workflows."""
    inner = draw(st.integers(0, 3))
    nodes: list[Node] = []
    for node_id in range(2, 2 + inner):
        around = draw(st.sampled_from([ROOT, *range(2, node_id)]))
        nodes.append((node_id, around, True, f"flow-{node_id}", "", ()))
    for node_id in range(10, 10 + draw(st.integers(1, 40))):
        earlier = [one[0] for one in nodes if not one[2]]
        after = draw(st.lists(st.sampled_from(earlier), max_size=4, unique=True)) if earlier else []
        kind = draw(st.sampled_from(["a", "b"]))
        inside = draw(st.sampled_from([ROOT, *(one[0] for one in nodes if one[2])]))
        nodes.append(job(node_id, draw(st.sampled_from(["x-1", "y", kind])), *after, kind=kind, inside=inside))
    return nodes


@given(definitions())
def test_every_node_is_in_a_group_and_every_line_goes_forward(nodes: list[Node]) -> None:
    """The level of a group is above that of each group that it waits for; each edge of a job is a line."""
    jobs = {one[0] for one in nodes if not one[2]}
    graph = graph_of(nodes)
    place = dict(zip(graph.ids, graph.group_of, strict=True))
    assert all(place[node_id] != NO_GROUP for node_id in jobs)
    assert graph.nodes == sum(number != NO_GROUP for number in graph.group_of)
    assert all(graph.groups[before].levels[0] < graph.groups[after].levels[0] for before, after in graph.edges)
    wanted = {(place[before], place[node_id]) for node_id, *_, after in nodes for before in after}
    assert wanted <= set(graph.edges)
    assert len(graph.edges) <= EDGES_MAX


@pytest.mark.parametrize("width", [3, 60])
def test_layers_that_all_wait_for_each_other_have_bounded_lines(width: int) -> None:
    """Sixty types of jobs in three layers: 7,200 lines, of which 2,000 are drawn."""
    nodes = []
    for node_id in range(2, 2 + 3 * width):
        layer, place = divmod(node_id - 2, width)
        before = range(2 + (layer - 1) * width, 2 + layer * width) if layer else ()
        nodes.append(job(node_id, "x", *before, kind=f"k{place}"))
    graph = graph_of(nodes)
    assert len(graph.groups) == 3 * width
    assert graph.edges_cut == (width == 60)
    assert len(graph.edges) <= EDGES_MAX
