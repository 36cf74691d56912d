"""Whole numbers beside doubles: ``client.income > 3000`` is read as ``client.income > 3000.0``, by a patch in the text.

CEL does not mix the two. Where one side is a double and the other is made of integer literals alone (signs, ``+ - *``
and ``?:`` included), the literals are written with a point, and CEL checks the text that comes of it. Nothing else is
changed: an int *field* beside a double is the user's to convert, because a double cannot hold every int. A division
of literals is not promoted, for ``7 / 2`` would mean another number.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tickwright.capabilities.batches.expressions.allowed import GETTERS
from tickwright.capabilities.batches.expressions.bounds import JOINS_MAX, is_field
from tickwright.capabilities.batches.expressions.library import NOW
from tickwright.capabilities.batches.expressions.patches import Patch
from tickwright.capabilities.batches.expressions.problems import Problem
from tickwright.capabilities.batches.expressions.tree import Node, Tree
from tickwright.ports.batches import FieldType

_BLANK = r"(?:\s|//[^\n]*\n)*"
_NUMBER = re.compile(rf"(?:-{_BLANK})?(0[xX][0-9a-fA-F]+|[0-9]+)")
_FIELD = re.compile(rf"client{_BLANK}\.{_BLANK}`?\w+`?")
_COMPARED = frozenset(["_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"])
_COMPUTED = frozenset(["_+_", "_-_", "_*_", "_/_"])
_KEPT = frozenset(["_+_", "_-_", "_*_", "-_", "_?_:_"])
_GIVES = {
    "size": "int",
    "timestamp": "timestamp",
    "duration": "duration",
    "int": "int",
    "double": "double",
    "string": "string",
}
_GIVES |= dict.fromkeys(GETTERS, "int")
EXACT_MAX = 2**53


class Promoted(NamedTuple):
    """The patches that the literals need, and what stands in the way."""

    patches: list[Patch]
    problems: list[Problem]


def promote(tree: Tree, text: str, fields: Mapping[str, FieldType]) -> Promoted:
    """Return the patches for the integer literals of a parsed and allowed tree that stand beside doubles."""
    reader = _Reader(tree, text, fields)
    reader.type_of(tree.root)
    return Promoted(sorted(reader.patches.values()), reader.problems)


def instants_read(tree: Tree, text: str, fields: Mapping[str, FieldType]) -> list[Patch]:
    """Return the patches for instants as texts, which CEL reads: ``client.at`` becomes ``timestamp(client.at)``."""
    made = []
    for node in tree.root.walk():
        start = tree.at(node)
        if node.kind == "name" and node.word == NOW:
            made.append(Patch(start, start + len(NOW), f"timestamp({NOW})"))
        elif is_field(node) and fields.get(node.word) == "timestamp":
            written = _FIELD.match(text, start)
            assert written is not None  # noqa: S101  # CEL found it there
            made.append(Patch(start, written.end(), f"timestamp(client.{node.word})"))
    return made


class _Reader:
    """Types from the leaves up, only as far as doubles go; CEL has the last word on all of them."""

    def __init__(self, tree: Tree, text: str, fields: Mapping[str, FieldType]) -> None:
        self._tree, self._text, self._fields = tree, text, fields
        self._joins = 0
        self.patches: dict[int, Patch] = {}
        self.problems: list[Problem] = []

    def type_of(self, node: Node) -> str:
        """Return the type of a piece, once what is in it is promoted; ``""`` where only CEL knows."""
        if node.kind == "value":
            return node.word
        if is_field(node):
            return self._fields.get(node.word, "")
        if node.kind == "name":
            return "timestamp" if node.word == NOW else ""
        return self._type_of_call(node) if node.kind == "call" else ""

    def _type_of_call(self, node: Node) -> str:
        if node.word == "@in":
            self._even([node.parts[0], *node.parts[1].parts])
            return "bool"
        if node.word == "_?_:_":
            self.type_of(node.parts[0])
            return self._even(list(node.parts[1:]))
        if node.word in _COMPARED:
            self._even(list(node.parts))
            return "bool"
        if node.word in _COMPUTED:
            return self._computed(node)
        kinds = [self.type_of(part) for part in node.parts]
        if node.word in {"-_", "_%_"}:
            return kinds[0]
        return _GIVES.get(node.word, "bool")

    def _computed(self, node: Node) -> str:
        kind = self._even(list(node.parts))
        if kind == "string" and node.word == "_+_":
            self._joins += 1
            if self._joins == JOINS_MAX + 1:
                at = self._tree.at(node)
                self.problems.append(Problem("expression_too_large", at, f"more than {JOINS_MAX} texts put together"))
        return kind

    def _even(self, parts: list[Node]) -> str:
        """Promote the integers among ``parts`` if one of them is a double, and return their common type."""
        kinds = [self.type_of(part) for part in parts]
        if "double" not in kinds:
            instants = {"timestamp", "duration"}
            return "" if len(set(kinds)) > 1 and instants & set(kinds) else kinds[0]
        for part, kind in zip(parts, kinds, strict=True):
            if kind == "int" and _is_literal(part):
                self._each(part, self._patch)
        return "double"

    def _each(self, node: Node, do: Callable[[Node], None]) -> None:
        if node.kind == "value":
            do(node)
        for part in node.parts[1:] if node.word == "_?_:_" else node.parts:
            self._each(part, do)

    def _patch(self, literal: Node) -> None:
        at = self._tree.at(literal)
        number = _NUMBER.match(self._text, at)
        assert number is not None  # noqa: S101  # CEL found it there
        value = abs(literal.value)
        if value > EXACT_MAX and int(float(value)) != value:
            said = f"no double is exactly {value}; the nearest is {int(float(value))}"
            self.problems.append(Problem("invalid_literal", at, said))
        self.patches[literal.id] = Patch(number.start(1), number.end(1), f"{value}.0")


def _is_literal(node: Node) -> bool:
    if node.kind == "value":
        return node.word == "int"
    parts = node.parts[1:] if node.word == "_?_:_" else node.parts
    return node.kind == "call" and node.word in _KEPT and all(map(_is_literal, parts))
