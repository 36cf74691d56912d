"""Compiles a text to an expression, or reports every mistake in it with its place.

CEL does not mix ints and doubles, so integer literals beside doubles are promoted: ``client.income > 3000`` becomes
``client.income > 3000.0``, by a patch of the text. When one side is a double and the other consists of integer literals
only (signs, ``+ - *`` and ``?:`` included), the literals get a point, and CEL checks the patched text. Nothing else is
changed. The user has to convert an int *field* beside a double, because a double cannot hold every int. A division of
literals is not promoted, because ``7 / 2`` would become another number.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tickwright.capabilities.batches.expressions import library
from tickwright.capabilities.batches.expressions.allowed import (
    COMPARED,
    GETTERS,
    JOINS_MAX,
    check_allowed,
    check_size,
    check_text,
    is_field,
)
from tickwright.capabilities.batches.expressions.judging import Expression
from tickwright.capabilities.batches.expressions.library import NOW
from tickwright.capabilities.batches.expressions.problems import Problem, refused
from tickwright.capabilities.batches.expressions.tree import Node, Tree
from tickwright.ports.batches import FieldType


class Patch(NamedTuple):
    """Replaces the text from ``start`` to before ``end`` by ``new``."""

    start: int
    end: int
    new: str


def patched(text: str, patches: Sequence[Patch]) -> str:
    """Return ``text`` with patches applied; they are in order and do not overlap."""
    pieces, at = [], 0
    for patch in patches:
        pieces += [text[at : patch.start], patch.new]
        at = patch.end
    return "".join([*pieces, text[at:]])


def original(offset: int, patches: Sequence[Patch]) -> int:
    """Return the offset in the original text for one in the patched text; inside a patch, its start."""
    grown = 0
    for patch in patches:
        if offset < patch.start + grown:
            break
        if offset < patch.start + grown + len(patch.new):
            return patch.start
        grown += len(patch.new) - (patch.end - patch.start)
    return offset - grown


_BLANK = r"(?:\s|//[^\n]*\n)*"
_NUMBER = re.compile(rf"(?:-{_BLANK})?(0[xX][0-9a-fA-F]+|[0-9]+)")
_FIELD = re.compile(rf"client{_BLANK}\.{_BLANK}`?\w+`?")
_COMPUTED = frozenset(["_+_", "_-_", "_*_", "_/_"])
_KEPT = frozenset(["_+_", "_-_", "_*_", "-_", "_?_:_"])
_GIVES = {name: name for name in ("timestamp", "duration", "int", "double", "string")}
_GIVES |= dict.fromkeys(("size", *GETTERS), "int")
EXACT_MAX = 2**53


def promote(tree: Tree, text: str, fields: Mapping[str, FieldType]) -> tuple[list[Patch], list[Problem]]:
    """Return the patches of the integer literals beside doubles in a parsed and allowed tree, and the mistakes."""
    reader = _Reader(tree, text, fields)
    reader.type_of(tree.root)
    return sorted(reader.patches.values()), reader.problems


def instants_read(tree: Tree, text: str, fields: Mapping[str, FieldType]) -> list[Patch]:
    """Return the patches for instants that are texts: ``client.at`` becomes ``timestamp(client.at)``."""
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
    """Types from the leaves up, only as far as doubles need them; CEL checks all types afterwards."""

    def __init__(self, tree: Tree, text: str, fields: Mapping[str, FieldType]) -> None:
        self._tree, self._text, self._fields = tree, text, fields
        self._joins = 0
        self.patches: dict[int, Patch] = {}
        self.problems: list[Problem] = []

    def type_of(self, node: Node) -> str:
        """Promote the literals in a node and return its type; ``""`` when only CEL knows it."""
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
        if node.word in COMPARED:
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
                self._patch(part)
        return "double"

    def _patch(self, literal: Node) -> None:
        for part in _operands(literal):
            self._patch(part)
        if literal.kind != "value":
            return
        at = self._tree.at(literal)
        number = _NUMBER.match(self._text, at)
        assert number is not None  # noqa: S101  # CEL found it there
        value = abs(literal.value)
        if value > EXACT_MAX and int(float(value)) != value:
            message = f"no double is exactly {value}; the nearest is {int(float(value))}"
            self.problems.append(Problem("invalid_literal", at, message))
        self.patches[literal.id] = Patch(number.start(1), number.end(1), f"{value}.0")


def _is_literal(node: Node) -> bool:
    if node.kind == "value":
        return node.word == "int"
    return node.kind == "call" and node.word in _KEPT and all(map(_is_literal, _operands(node)))


def _operands(node: Node) -> tuple[Node, ...]:
    return node.parts[1:] if node.word == "_?_:_" else node.parts


_LISTS = frozenset(f"list({kind})" for kind in ("int", "double", "string", "bool", "timestamp", "duration"))


def compile_expression(text: str, fields: Mapping[str, FieldType]) -> Expression:
    """Return the expression of ``text``, over clients with ``fields``. Takes some milliseconds, at most 100.

    The text is CEL of at most 4,096 characters; fields are ``client.NAME``, the occurrence's instant is ``now``.
    ``fields`` maps names without ``client.``, which are identifiers, to types.

    Raises:
        Rejected: A code of this package, with ``line``, ``column``, ``offset`` and all ``problems``. Permanent.

    Invariants:
        EXP-1: a returned expression names declared fields only, has no loop, and returns a boolean.
        EXP-2: places always refer to ``text``, also for a promoted literal.
    """
    _raise(text, check_text(text))
    try:
        tree = library.parse(text)
    except library.Unreadable as error:
        raise refused(text, error.problems[:1]) from None  # after the first mistake the parser guesses
    _raise(text, list(check_size(tree)))
    _raise(text, list(check_allowed(tree, fields)))
    patches, problems = promote(tree, text, fields)
    _raise(text, problems)
    ready = patched(text, patches)
    try:
        program, checked = library.check(ready, fields)
    except library.Unreadable as error:
        raise refused(text, _placed_back(error.problems, patches)) from None
    _raise(text, _placed_back(list(_check_lists(checked)), patches))
    kind = checked.types.get(checked.root.id, "nothing")
    if kind != "bool":
        message = f"this is of type {kind}; an expression says true or false"
        _raise(text, [Problem("expression_not_boolean", tree.at(tree.root), message)])
    return Expression(fields, program, checked, patched(text, sorted([*patches, *instants_read(tree, text, fields)])))


def _check_lists(tree: Tree) -> Iterator[Problem]:
    """Yield lists of mixed types, which CEL accepts as dynamic."""
    for node in tree.root.walk():
        if node.kind == "list" and tree.types.get(node.id) not in _LISTS:
            yield Problem("expression_type", tree.at(node), "the elements of a list have one type")


def _placed_back(problems: Sequence[Problem], patches: Sequence[Patch]) -> list[Problem]:
    return [problem._replace(offset=original(problem.offset, patches)) for problem in problems]


def _raise(text: str, problems: Sequence[Problem]) -> None:
    if problems:
        raise refused(text, problems)
