"""What may be said of reports when a storm is over: G1 to G3 as a pure function of what was found."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Found:
    """What is left of one report.

    Attributes:
        sha256: Of its file as it is in the store; ``None`` where there is none.
        truth: What the file has to have, for the record's epoch.
        objects: Keys below its folder, behind upkeep.
        endless: Keys of Redis without an end.
    """

    id: int
    status: str
    error: str | None = None
    file_key: str | None = None
    sha256: str | None = None
    truth: str = ""
    objects: Sequence[str] = field(default=())
    endless: Sequence[str] = field(default=())


def complaints(found: Iterable[Found]) -> list[str]:
    """Return every broken promise in words; nothing means that G1, G2 and G3 hold."""
    return [text for one in found for text in _of(one)]


def _of(one: Found) -> list[str]:
    said = []
    if one.status not in {"finished", "failed", "cancelled"}:
        said.append(f"G3 broken: {one.id} is {one.status}")
    if one.status == "finished" and one.sha256 != one.truth:
        said.append(f"G1 broken: {one.id} has not the rows that it has to have")
    if one.status == "failed" and not one.error:
        said.append(f"G1 broken: {one.id} failed without a reason")
    wanted = [one.file_key] if one.status == "finished" else []
    if list(one.objects) != wanted:
        said.append(f"G2 broken: {one.id} has {len(one.objects)} objects instead of {len(wanted)}")
    return said + [f"G3 broken: {key} has no end" for key in one.endless]
