"""Every mistake of a definition, collected: what it is about, its code, where it is, and what to do."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tickwright.domain.errors import Rejected
from tickwright.domain.wording import Reader, read_fields

PROBLEMS_MAX = 100
CODE = "invalid_value"


class Mistake(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One mistake.

    Attributes:
        field: The word that it is about, with dots where it is inside of one; empty for the whole.
        code: Stable.
        line: Of a text in a language of its own, from 1 on; none where there is no place.
        column: The same.
        offset: In characters from the beginning of that text, from 0 on.
    """

    field: str
    code: str
    message: str
    line: int | None = None
    column: int | None = None
    offset: int | None = None


class Problems:
    """The mistakes of one definition.

    Args:
        what: What is defined, for the lines of the message: ``campaign``.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.found: list[Mistake] = []

    def add(self, field: str, message: str, *, code: str = CODE) -> None:
        """Note one."""
        self.found.append(Mistake(field=field, code=code, message=message))

    def of(self, error: Rejected, field: str) -> None:
        """Note what was refused about ``field``: where the error says so, every single one of its problems."""
        for one in error.details.get("problems") or [error.details]:
            if isinstance(one, str):
                path, _, message = one.partition(": ")
                self.add(path, message, code=error.code)
                continue
            place = {name: one[name] for name in ("line", "column", "offset") if name in one}
            code, message = one.get("code", error.code), one.get("message", error.message.removeprefix(f"{field}: "))
            self.found.append(Mistake(field=field, code=code, message=message, **place))

    def about(self, field: str) -> bool:
        """Return whether one is about this word."""
        return any(one.field == field for one in self.found)

    def read(self, table: Mapping[str, Any], words: Mapping[str, Reader], *, inside: str = "") -> dict[str, Any]:
        """Return what ``words`` make of ``table``; what they refuse, and words that nobody knows, are noted."""
        texts: list[str] = []
        values = read_fields(table, words, texts, where=inside)
        for text in texts:
            field, _, message = text.partition(": ")
            self.add(field.removeprefix("."), message)
        return values

    def raise_found(self) -> None:
        """Refuse the definition where there is a mistake.

        Raises:
            Rejected: ``invalid_<what>``, or the code that all of them have; with each in ``problems``, and the place
                of the first that has one. Permanent.
        """
        if not self.found:
            return
        found = self.found[:PROBLEMS_MAX]
        codes = {one.code for one in found}
        code = found[0].code if len(codes) == 1 and CODE not in codes else f"invalid_{self.what}"
        placed = next((one for one in found if one.line is not None), None)
        place = {} if placed is None else {"line": placed.line, "column": placed.column, "offset": placed.offset}
        told = [msgspec.to_builtins(one) for one in found]
        raise Rejected(code, "\n".join(map(_line, found)), field=found[0].field, problems=told, **place)


def _line(one: Mistake) -> str:
    place = "" if one.line is None else f"line {one.line}, column {one.column}: "
    return f"{one.field}: {place}{one.message}" if one.field else one.message
