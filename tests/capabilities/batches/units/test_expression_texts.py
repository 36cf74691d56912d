"""Any text is an expression or is refused in one way: with a code, a sentence, and a position inside it."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tickwright.capabilities.batches.expressions import compile_expression, explain_problem
from tickwright.capabilities.batches.expressions.compiling import Patch, original, patched
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import FieldType

FIELDS: dict[str, FieldType] = {"age": "int", "income": "double", "country": "string", "since": "timestamp"}
CODES = {
    "expression_syntax", "unknown_field", "expression_type", "expression_not_boolean", "expression_too_large",
    "expression_loops", "expression_not_allowed", "invalid_literal",
}  # fmt: skip
WORDS = [
    "client.age", "client.income", "client.country", "client.since", "client.x", "client", "now", "age", "x", ".age",
    "`age`", "(", ")", "[", "]", "{", "}", "&&", "||", "!", "-", "+", "*", "/", "%", "?", ":", ",", ".", "in", "==",
    "!=", "<", ">=", "1", "2.5", "0x1f", "9223372036854775808", "1u", "1e999", "true", "null", "'a'", '"é😀"',
    "r'\\d'", "b'a'", "'''", "timestamp", "duration", "size", "matches", ".matches", ".startsWith", ".getHours",
    "double", "has", ".all", ".map", "dyn", "'2026-01-01T00:00:00Z'", "'1h'", "'('", "\n", "\t", "\r\n", "//", "@",
    "\\", "$", ";", "\u202e", "\x00", "\ud800", "é",
]  # fmt: skip
TOKENS = st.sampled_from(WORDS)
SENTENCES = st.lists(TOKENS, max_size=30).flatmap(
    lambda tokens: st.sampled_from([" ", ""]).map(lambda between: between.join(tokens))
)
OPERANDS = st.sampled_from(
    [
        "client.age",
        "client.income",
        "client.country",
        "client.since",
        "now",
        "1",
        "-2",
        "2.5",
        "'a'",
        "true",
        "[1, 2.5]",
    ]
)
SHAPES = [
    "({} == {})", "({} < {})", "({} + {})", "({} - {})", "({} / {})", "({} && {})", "({} in {})", "({} ? {} : 1)",
    "size({})", "double({})", "timestamp({})", "duration({})", "{}.matches({})", "matches({}, {})", "matches({})",
    "{}.getHours({})", "{}.getHours()", "{}.matches()", "size()", "matches()", "timestamp()", "{}.size({})",
    "[{}, {}]", "-{}", "!{}", "{}.x", "{}[{}]", "{}.all(x, {})", "has({})",
]  # fmt: skip
FORMS = st.sampled_from(SHAPES)
TREES = st.recursive(
    OPERANDS,
    lambda inner: st.builds(lambda form, one, other: form.format(one, other), FORMS, inner, inner),
    max_leaves=8,
)


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=40) | SENTENCES | TREES)
@example("matches()")
@example("client.age in")
@example("-//x\n3 < client.income")
def test_any_text_is_an_expression_or_is_refused_with_a_position(text: str) -> None:
    """No other error is raised, every problem lies inside the text, and each can be shown."""
    problems: list[dict[str, Any]] = []
    try:
        assert set(compile_expression(text, FIELDS).fields) <= set(FIELDS)
    except Rejected as error:
        problems = error.details["problems"]
        code = error.code
        assert code == problems[0]["code"]
    assert len(problems) <= 20
    for one in problems:
        before = text[: one["offset"]]
        assert one["code"] in CODES
        assert one["message"]
        assert one["offset"] == len(before)
        assert (one["line"], one["column"]) == (before.count("\n") + 1, len(before) - before.rfind("\n"))
        assert explain_problem(text, one).count("\n") >= 2


@given(
    st.text(max_size=30),
    st.lists(st.integers(0, 30), max_size=8, unique=True),
    st.lists(st.text(max_size=4), min_size=4),
)
def test_positions_outside_of_patches_map_back_to_the_original(text: str, cuts: list[int], new: list[str]) -> None:
    """Every kept character maps back to its own position."""
    places = sorted(cut for cut in cuts if cut <= len(text))
    pairs = list(zip(places[::2], places[1::2], strict=False))
    patches = [Patch(start, end, word) for (start, end), word in zip(pairs, new, strict=False)]
    made = patched(text, patches)
    inside = {place for patch in patches for place in range(patch.start, patch.end)}
    kept = [place for place in range(len(text)) if place not in inside]
    found = [original(place, patches) for place in range(len(made))]
    assert [place for place in kept if place in found] == kept
    assert all(
        text[there] == made[here] for here, there in enumerate(found) if there in kept and found.count(there) == 1
    )
