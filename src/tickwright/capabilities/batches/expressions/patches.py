"""Changes to a text by place, and the way back from a place in what came of it."""

from collections.abc import Sequence
from typing import NamedTuple


class Patch(NamedTuple):
    """From ``start`` up to ``end`` the text becomes ``new``."""

    start: int
    end: int
    new: str


def patched(text: str, patches: Sequence[Patch]) -> str:
    """Return ``text`` with patches that are in their order and do not overlap."""
    pieces, at = [], 0
    for patch in patches:
        pieces += [text[at : patch.start], patch.new]
        at = patch.end
    return "".join([*pieces, text[at:]])


def original(offset: int, patches: Sequence[Patch]) -> int:
    """Return where the character at ``offset`` of the patched text stood; inside of a patch, its start."""
    grown = 0
    for patch in patches:
        if offset < patch.start + grown:
            break
        if offset < patch.start + grown + len(patch.new):
            return patch.start
        grown += len(patch.new) - (patch.end - patch.start)
    return offset - grown
