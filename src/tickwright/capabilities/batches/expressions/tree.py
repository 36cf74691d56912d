"""The tree of an expression, read from CEL's Protocol Buffers, so that it can be bounded and translated.

The numbers of the fields are those of ``cel/expr/syntax.proto`` and ``cel/expr/checked.proto``. The messages are read
field by field, without a library; only bytes that this process has serialised are read. Unknown fields are skipped.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MASK = 2**64


class Field(NamedTuple):
    """One field of a message: its number, and an unsigned integer or bytes."""

    number: int
    value: int | bytes

    @property
    def bytes(self) -> bytes:
        """A text, a message or a list."""
        assert isinstance(self.value, bytes)  # noqa: S101  # the schema says so
        return self.value

    @property
    def int64(self) -> int:
        """A signed integer."""
        assert isinstance(self.value, int)  # noqa: S101  # the schema says so
        return self.value - _MASK if self.value >= _MASK // 2 else self.value

    @property
    def double(self) -> float:
        """A floating-point number."""
        assert isinstance(self.value, int)  # noqa: S101  # the schema says so
        made: float = struct.unpack("<d", struct.pack("<Q", self.value))[0]
        return made

    @property
    def text(self) -> str:
        """A text."""
        return self.bytes.decode()


def fields_of(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message in their order."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield Field(tag >> 3, value)
        elif kind == _BYTES:
            size, at = _varint(message, at)
            yield Field(tag >> 3, message[at : at + size])
            at += size
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[kind]
            yield Field(tag >> 3, int.from_bytes(message[at : at + size], "little"))
            at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


Kind = Literal["value", "name", "field", "call", "list", "loop", "object"]
_CONSTANTS: Mapping[int, tuple[str, Callable[[Field], Any] | None]] = {
    1: ("null", None),
    2: ("bool", lambda field: bool(field.value)),
    3: ("int", lambda field: field.int64),
    4: ("uint", lambda field: field.int64),
    5: ("double", lambda field: field.double),
    6: ("string", lambda field: field.text),
    7: ("bytes", None),
}
_PRIMITIVES = {1: "bool", 2: "int", 3: "uint", 4: "double", 5: "string", 6: "bytes"}
_WELL_KNOWN = {2: "timestamp", 3: "duration"}


class Node(NamedTuple):
    """A node of an expression.

    Attributes:
        word: The name, field or function; the type of a value.
        parts: Its operands; the target ``a`` of ``a.f(b)`` is first.
        is_member: It is written ``a.f(b)``.
        is_test: ``has(a.b)``.
    """

    id: int
    kind: Kind
    word: str = ""
    value: Any = None
    parts: "tuple[Node, ...]" = ()
    is_member: bool = False
    is_test: bool = False

    def walk(self) -> "Iterator[Node]":
        """Yield it and all nodes below."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.parts)


class Tree(NamedTuple):
    """An expression.

    Attributes:
        positions: Offset in characters, by node.
        types: By node, after the check: a ``FieldType``, ``duration``, ``list(…)`` or another name.
    """

    root: Node
    positions: Mapping[int, int]
    types: Mapping[int, str]

    def at(self, node: Node) -> int:
        """Return the place of a node, in characters: of a field that of ``client``, of an operator that of its sign."""
        while node.kind == "field":
            node = node.parts[0]
        return self.positions.get(node.id, 0)


def read_tree(serialised: bytes) -> Tree:
    """Return the tree of ``cel.Expression.serialize()``, parsed only or checked."""
    name, message = (field.bytes for field in fields_of(serialised))
    is_checked = name.endswith(b".CheckedExpr")
    expression, source = (4, 5) if is_checked else (2, 3)
    root, positions, types = Node(0, "object"), dict[int, int](), dict[int, str]()
    for field in fields_of(message):
        if field.number == expression:
            root = _node(field.bytes)
        elif field.number == source:
            positions = dict(_pair(entry.bytes) for entry in fields_of(field.bytes) if entry.number == 4)
        elif is_checked and field.number == 3:
            entry = {part.number: part for part in fields_of(field.bytes)}
            types[entry[1].int64] = _type(entry[2].bytes)
    return Tree(root, positions, types)


def _pair(message: bytes) -> tuple[int, int]:
    entry = {field.number: field.int64 for field in fields_of(message)}
    return entry.get(1, 0), entry.get(2, 0)


def _node(message: bytes) -> Node:
    number, content = 0, None
    for field in fields_of(message):
        if field.number == 2:
            number = field.int64
        else:
            content = field
    read = _READ.get(content.number) if content else None
    return read(number, list(fields_of(content.bytes))) if content and read else Node(number, "object")


def _select(number: int, inner: list[Field]) -> Node:
    return Node(
        number, "field", _word(inner), parts=_nodes(inner, 1), is_test=any(field.number == 3 for field in inner)
    )


def _call(number: int, inner: list[Field]) -> Node:
    target = _nodes(inner, 1)
    return Node(number, "call", _word(inner), parts=target + _nodes(inner, 3), is_member=bool(target))


def _word(inner: list[Field]) -> str:
    return "".join(field.text for field in inner if field.number == 2)


def _nodes(inner: list[Field], number: int) -> tuple[Node, ...]:
    return tuple(_node(field.bytes) for field in inner if field.number == number)


def _constant(number: int, inner: list[Field]) -> Node:
    if not inner:
        return Node(number, "value", "null")
    word, read = _CONSTANTS.get(inner[0].number, ("unknown", None))
    return Node(number, "value", word, read and read(inner[0]))


_READ: Mapping[int, Callable[[int, list[Field]], Node]] = {
    3: _constant,
    4: lambda number, inner: Node(number, "name", inner[0].text),
    5: _select,
    6: _call,
    7: lambda number, inner: Node(number, "list", parts=_nodes(inner, 1)),
    9: lambda number, _: Node(number, "loop"),
}


def _type(message: bytes) -> str:
    for field in fields_of(message):
        match field.number:
            case 3:
                return _PRIMITIVES.get(field.int64, "unknown")
            case 5:
                return _WELL_KNOWN.get(field.int64, "unknown")
            case 6:
                elements = [_type(part.bytes) for part in fields_of(field.bytes)]
                return f"list({elements[0] if elements else 'unknown'})"
    return "unknown"
