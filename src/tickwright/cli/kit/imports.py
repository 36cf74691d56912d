"""Streaming a file in: constant memory, a progress bar, and a report of what was rejected."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from tickwright.cli.kit.gateway import Gateway, read_answer, through
from tickwright.cli.kit.output import console, say, show_json, show_rows, write
from tickwright.domain.errors import Rejected

CHUNK_BYTES = 262_144
SHOWN_REJECTS = 20


@dataclass(frozen=True, slots=True)
class Upload:
    """Where a file goes, and what its lines become.

    Attributes:
        route: Such as ``/v1/jobs:bulk``.
        things: What a line makes, for people.
        key: Makes it safe to send the same file again, where the route takes one.
        content_type: Of the file.
    """

    route: str
    things: str
    key: str | None = None
    content_type: str = "application/x-ndjson"


def import_file(name: str, upload: Upload, *, rejects: str | None, as_json: bool) -> int:
    """Send the file and print what became of it; return how many lines were rejected.

    Raises:
        Rejected: ``file_unreadable``, or what the API says. Permanent.
        Unavailable: ``import_interrupted``; send it again, with the same key.
    """
    with _opened(name) as file, _bar(None if name == "-" else Path(name).stat().st_size) as bar:
        result = through(lambda gateway: _send(gateway, _chunks(file, bar), upload))
    if rejects is not None:
        _write_report(Path(rejects), result["rejects"])
    if as_json:
        show_json(result)
    else:
        _show(result, upload.things, rejects)
    return int(result["rejected"])


def _opened(name: str) -> Any:
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise Rejected("file_unreadable", f"{name} cannot be read: {error.strerror}") from error


def _bar(size_bytes: int | None) -> Progress:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    progress.add_task("import", total=size_bytes)
    return progress


async def _chunks(file: BinaryIO, bar: Progress) -> AsyncIterator[bytes]:
    while chunk := await asyncio.to_thread(file.read1, CHUNK_BYTES):  # type: ignore[attr-defined]  # buffered readers have it
        bar.advance(bar.task_ids[0], len(chunk))
        yield chunk


async def _send(gateway: Gateway, chunks: AsyncIterator[bytes], upload: Upload) -> Any:
    headers = {} if upload.key is None else {"idempotency-key": upload.key}
    status, answer = await gateway.send(
        "POST", upload.route, query={}, body=chunks, content_type=upload.content_type, headers=headers
    )
    return read_answer(status, answer)


def _write_report(path: Path, rejects: list[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as report:
        for reject in rejects:
            report.write(json.dumps(reject, ensure_ascii=False) + "\n")


def _show(result: dict[str, Any], things: str, rejects: str | None) -> None:
    known = f", {result['existing']} known already" if result["existing"] else ""
    write(f"{result['created']} {things} from {result['lines']} lines{known}, {result['rejected']} rejected\n")
    if result["rejected"] and rejects is None:
        show_rows(result["rejects"][:SHOWN_REJECTS], ("line", "code", "message"))
    hidden = result["rejects_left_out"] + (0 if rejects else max(0, len(result["rejects"]) - SHOWN_REJECTS))
    if hidden:
        say(f"{hidden} more rejected lines are not shown; --rejects FILE has up to 1000 of them")
