"""The members of one piece of an audience while they are read: who is selected, and in the end how many were what.

A client counts once however often its key stands there; it is selected where any of its rows is. Who cannot be told
about or judged is skipped, counted, and up to ten of them are shown.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from tickwright.capabilities.batches.audience.schema import AudienceTerms
from tickwright.capabilities.batches.audience.values import (
    Unreadable,
    check_key,
    client_text,
    instant,
    read_stored,
    shapes_of,
    stored,
)
from tickwright.domain.errors import Rejected
from tickwright.ports.batches import Action, ChunkResult, Dialect, Judge, Verdict
from tickwright.ports.reports import NOT_UTF8, Rows

PROBLEMS_MAX = 10
KEY_SHOWN_CHARS_MAX = 200
_HEAD = 2  # the key and the unreadable field stand before the fields


class Reading:
    """Rows of a source as selected clients; iterate it once.

    Args:
        rows: Each a key as text, the name of an unreadable field or ``None``, the fields, the columns.
        judge: Decides here; ``None`` where the source did, or nobody does.
        in_order: Equal keys are beside each other, so that no others need to be remembered.

    Attributes:
        result: What was counted; complete when all rows were read. It keeps no actions.
    """

    def __init__(
        self,
        terms: AudienceTerms,
        dialect: Dialect,
        rows: Rows | None,
        judge: Judge | None,
        now: datetime,
        *,
        in_order: bool = False,
    ) -> None:
        self._terms, self._rows, self._judge, self._now, self._in_order = terms, rows, judge, now, in_order
        self._names = [*(one.name for one in terms.fields), *terms.columns]
        self._is_stored = dialect == "sqlite"
        self._shapes = shapes_of(rows.columns[_HEAD:]) if rows is not None else []
        read = set(judge.fields) if judge is not None else set()
        self._judged = [
            (at, one.name, one.type == "timestamp") for at, one in enumerate(terms.fields) if one.name in read
        ]
        self._known: set[str] = set()
        self._unreadable = 0
        self._counted: tuple[int, ...] = ()
        self.result = ChunkResult()

    async def __aiter__(self) -> AsyncIterator[Sequence[Action]]:
        """Give the selected in pieces of up to some hundred; never an empty one."""
        if self._rows is None:
            return
        async for piece in self._rows:
            selected = [action for row in piece if (action := self._take(row)) is not None]
            if selected:
                yield selected
            await asyncio.sleep(0)
        self._finish()

    def _finish(self) -> None:
        """Where the source judged, it knows how many there were: only some of them came here."""
        result, counted = self.result, self._counted or (self.result.seen, self._unreadable, self.result.missing)
        result.seen, skipped, result.missing = counted
        result.skipped += skipped

    def skip(self, key: Any, problem: str, members: int = 1) -> None:
        """Count members who are skipped, and show one."""
        self.result.skipped += members
        self._show(key, problem)

    def _show(self, key: Any, problem: str) -> None:
        if len(self.result.problems) < PROBLEMS_MAX:
            shown = "" if key is NOT_UTF8 else key[:KEY_SHOWN_CHARS_MAX].replace("\0", "\\u0000")
            self.result.problems.append({"client_id": shown, "problem": problem})

    def _take(self, row: Sequence[Any]) -> Action | None:
        key, bad, *values = row
        if key is None:
            self._counted = tuple(map(int, bad.split()))
            return None
        self.result.seen += 1
        if bad is not None:
            self._unreadable += 1
            self._show(key, unreadable(self._terms, bad))
            return None
        try:
            check_key(key)
            if self._is_stored:
                self._read_stored(values)
            if self._judge is not None and not self._is_selected(self._judge, values):
                return None
            for at, shape in self._shapes:
                values[at] = shape(values[at])
            client = client_text(self._names, values)
        except Unreadable as problem:
            self.skip(key, str(problem))
            return None
        except Rejected as error:
            if error.code != "not_judged":
                raise
            self.skip(key, error.message)
            return None
        return Action(key, client) if self._is_new(key) else None

    def _is_selected(self, judge: Judge, values: Sequence[Any]) -> bool:
        known = {name: instant(values[at]) if is_instant else values[at] for at, name, is_instant in self._judged}
        verdict = judge.judge(known, self._now)
        if verdict is Verdict.MISSING:
            self.result.missing += 1
        return verdict is Verdict.SELECTED

    def _is_new(self, key: str) -> bool:
        if key in self._known:
            return False
        if self._in_order:
            self._known.clear()
        self._known.add(key)
        self.result.selected += 1
        return True

    def _read_stored(self, values: list[Any]) -> None:
        for at, one in enumerate(self._terms.fields):
            try:
                values[at] = read_stored(one.type, values[at])
            except Unreadable:
                raise Unreadable(unreadable(self._terms, one.name)) from None
        for at in range(len(self._terms.fields), len(values)):
            try:
                values[at] = stored(values[at])
            except Unreadable as problem:
                raise Unreadable(f"{self._names[at]}: {problem}") from None


def unreadable(terms: AudienceTerms, field: str) -> str:
    """Return what is wrong with a member whose field cannot be read."""
    kind = next((one.type for one in terms.fields if one.name == field), "string")
    return f"{field}: its value is no {kind}"
