"""From a text to an expression that decides, or to every mistake in it with its place."""

from collections.abc import Iterator, Mapping, Sequence

from tickwright.capabilities.batches.expressions import library
from tickwright.capabilities.batches.expressions.allowed import check_allowed
from tickwright.capabilities.batches.expressions.bounds import check_size, check_text
from tickwright.capabilities.batches.expressions.judging import Expression
from tickwright.capabilities.batches.expressions.patches import Patch, original, patched
from tickwright.capabilities.batches.expressions.problems import Problem, refused
from tickwright.capabilities.batches.expressions.promotion import instants_read, promote
from tickwright.capabilities.batches.expressions.tree import Tree
from tickwright.ports.batches import FieldType

_LISTS = frozenset(f"list({kind})" for kind in ("int", "double", "string", "bool", "timestamp", "duration"))


def compile_expression(text: str, fields: Mapping[str, FieldType]) -> Expression:
    """Return the expression that ``text`` is, over clients that have ``fields``. Takes some milliseconds, at most 100.

    Args:
        text: CEL, at most 4,096 characters; fields are ``client.NAME``, the occurrence's instant is ``now``.
        fields: Types by name, without ``client.``; a name is an identifier.

    Raises:
        Rejected: A code of this package, with ``line``, ``column``, ``offset`` and all ``problems``. Permanent.

    Invariants:
        EXP-1: an expression that is returned names declared fields only, has no loop, and gives a boolean.
        EXP-2: places always refer to ``text``, also where a literal was promoted.
    """
    _raise(text, check_text(text))
    tree = _parsed(text)
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
        said = f"this is of type {kind}; an expression says true or false"
        _raise(text, [Problem("expression_not_boolean", tree.at(tree.root), said)])
    return Expression(fields, program, checked, patched(text, sorted([*patches, *instants_read(tree, text, fields)])))


def _parsed(text: str) -> Tree:
    try:
        return library.parse(text)
    except library.Unreadable as error:
        raise refused(text, error.problems[:1]) from None  # behind the first slip the parser guesses


def _check_lists(tree: Tree) -> Iterator[Problem]:
    """Yield what CEL lets pass by calling it dynamic."""
    for node in tree.root.walk():
        if node.kind == "list" and tree.types.get(node.id) not in _LISTS:
            yield Problem("expression_type", tree.at(node), "the elements of a list have one type")


def _placed_back(problems: Sequence[Problem], patches: Sequence[Patch]) -> list[Problem]:
    return [problem._replace(offset=original(problem.offset, patches)) for problem in problems]


def _raise(text: str, problems: Sequence[Problem]) -> None:
    if problems:
        raise refused(text, problems)
