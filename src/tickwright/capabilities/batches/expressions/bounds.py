"""The bounds of an expression: characters, nodes, depth, lists, patterns, concatenated texts.

The text is checked before CEL parses it, and the tree before CEL types it. A regular expression runs in RE2, in time
linear in the text, but is compiled for each client. Repetitions make that expensive, so their product is bounded.
"""

import re
import unicodedata
from collections.abc import Iterator
from math import prod

from tickwright.capabilities.batches.expressions.problems import Problem
from tickwright.capabilities.batches.expressions.tree import Node, Tree

TEXT_CHARS_MAX = 4096
NODES_MAX = 500
"""Without the elements of lists."""
DEPTH_MAX = 24
ITEMS_MAX = 1000
"""In all lists together."""
PATTERN_CHARS_MAX = 200
PATTERNS_COST_MAX = 2500
"""Of all patterns: characters, and 1,000 per Unicode class, times the product of the counted repetitions."""
_CLASS_COST = 1000
JOINS_MAX = 8
"""Concatenations: each copies its left side."""
_STEERING = frozenset("\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
_REPEAT = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")
_CLASS = re.compile(r"\\[pP]")
_PIECE = re.compile(
    r"""
      [rR]?(?:\"{3}.*?\"{3}|'{3}.*?'{3})
    | [rR](?:"[^"\n]*"|'[^'\n]*')
    | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*'
    | //[^\n]*
    | [(\[{] | [)\]}]
    """,
    re.VERBOSE | re.DOTALL,
)


def check_text(text: str) -> list[Problem]:
    """Return the mistakes in a text before it is parsed."""
    if len(text) > TEXT_CHARS_MAX:
        said = f"{len(text)} characters; an expression has at most {TEXT_CHARS_MAX}"
        return [Problem("expression_too_large", TEXT_CHARS_MAX, said)]
    if not text.strip():
        return [Problem("expression_syntax", 0, "it is empty; write true to select every client")]
    return [
        Problem(
            "expression_syntax",
            offset,
            f"character U+{ord(one):04X} cannot be seen; in a text write it as \\u{ord(one):04x}",
        )
        for offset, one in enumerate(text)
        if (unicodedata.category(one) in {"Cc", "Cs"} and one not in "\t\n\r") or one in _STEERING
    ][:1]


def too_deep(text: str) -> Problem:
    """Return the refusal of a text that is too deep for CEL, at the bracket that exceeds the bound."""
    depth = 0
    for piece in _PIECE.finditer(text):
        depth += (piece[0] in "([{") - (piece[0] in ")]}")
        if depth > DEPTH_MAX:
            return _deep(piece.start())
    return _deep(0)


def _deep(offset: int) -> Problem:
    return Problem("expression_too_large", offset, f"more than {DEPTH_MAX} levels; write less inside of each other")


def check_size(tree: Tree) -> Iterator[Problem]:
    """Yield what is too large in a parsed tree; only the first place for nodes and depth."""
    stack, count, items = [(tree.root, 1)], 0, 0
    while stack:
        node, depth = stack.pop()
        count += 1
        at = tree.at(node)
        if depth > DEPTH_MAX:
            yield _deep(at)
            return
        if count > NODES_MAX:
            yield Problem(
                "expression_too_large", at, f"more than {NODES_MAX} pieces; write what is listed as client.x in [...]"
            )
            return
        if node.kind == "list":
            items += len(node.parts)
            if items > ITEMS_MAX:
                yield Problem("expression_too_large", at, f"lists of more than {ITEMS_MAX} elements, all counted")
                return
            count -= len([part for part in node.parts if not part.parts])
        stack += [(part, depth + 1) for part in reversed(node.parts)]


def pattern_cost(pattern: str) -> int:
    """Return an upper bound of the cost of compiling a regular expression: 2,500 is about a millisecond."""
    repeated = prod(max(int(most or 0), int(least), 1) for least, most in _REPEAT.findall(pattern))
    return (len(pattern) + _CLASS_COST * len(_CLASS.findall(pattern))) * repeated


def is_field(node: Node) -> bool:
    """Return whether a node reads a field of the client."""
    return node.kind == "field" and not node.is_test and node.parts[0].kind == "name" and node.parts[0].word == "client"
