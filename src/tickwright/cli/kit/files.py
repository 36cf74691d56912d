"""Files: a report's is downloaded beside its target, checked, then renamed; a file to import is uploaded in pieces."""

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tickwright.cli.kit.gateway import Gateway, read_answer, with_gateway
from tickwright.cli.kit.output import console, say, show_json, show_rows, write
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.ids import random_token

if TYPE_CHECKING:
    from rich.progress import Progress

ACCEPT = {"accept": "application/json"}


class _Incoming:
    """A file that is being downloaded, with its size and hash."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.sha256()
        self.bytes = 0

    async def take(self, piece: bytes) -> None:
        """Write a piece."""
        self._file.write(piece)
        self._hash.update(piece)
        self.bytes += len(piece)

    @property
    def checksum(self) -> str:
        """SHA-256 of the received bytes, hexadecimal."""
        return self._hash.hexdigest()


async def download(gateway: Gateway, report_id: int, output: str | None) -> dict[str, Any]:
    """Download a report's file and return its path and figures.

    ``output`` is a file or a folder; by default the file is stored under its own name in this folder. An existing file
    is replaced.

    Raises:
        Rejected: ``file_unwritable``, or the API's error (``report_not_finished``, ``file_expired``). Permanent.
        Unavailable: ``download_broken``, ``download_damaged``: the received bytes are not the file. Retry.
    """
    status, answer = await gateway.send(
        "GET", f"/v1/reports/{report_id}/file", query={}, body=None, content_type="", headers=ACCEPT
    )
    link = read_answer(status, answer)
    target = _target(output, link["name"])
    beside = target.with_name(f".{target.name}.{random_token(6)}.part")
    try:
        with beside.open("xb") as file:
            await _fetch(gateway, link, _Incoming(file))
        beside.replace(target)
    except OSError as error:
        raise Rejected("file_unwritable", f"{target} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    return {"file": os.fspath(target), **{name: link[name] for name in ("rows", "bytes", "checksum")}}


def _target(output: str | None, name: str) -> Path:
    safe = Path(name).name
    if output is None:
        return Path(safe)
    return Path(output, safe) if Path(output).is_dir() else Path(output)


async def _fetch(gateway: Gateway, link: dict[str, Any], incoming: _Incoming) -> None:
    status, answer = await gateway.fetch(link["url"], incoming.take)
    if status != 200:
        if link["url"].startswith("/"):
            read_answer(status, answer)
        raise Unavailable("download_broken", f"the object store answers {status}; try again")
    if (incoming.bytes, incoming.checksum) != (link["bytes"], link["checksum"]):
        raise Unavailable("download_damaged", f"{incoming.bytes} bytes arrived that are not the file; try again")


# Upload of a file: constant memory, a progress bar, and a report of rejected lines.

CHUNK_BYTES = 262_144
SHOWN_REJECTS = 20


@dataclass(frozen=True, slots=True)
class Upload:
    """The route of an upload, such as ``/v1/jobs:bulk``, and the name of the things that its lines create.

    A ``key`` makes it safe to send the same file again, if the route accepts one.
    """

    route: str
    things: str
    key: str | None = None
    content_type: str = "application/x-ndjson"


def import_file(name: str, upload: Upload, *, rejects: str | None, as_json: bool) -> int:
    """Send the file and print the result; return the number of rejected lines.

    Raises:
        Rejected: ``file_unreadable``, or the API's error. Permanent.
        Unavailable: ``import_interrupted``. Retry with the same key.
    """
    with _opened(name) as file, _bar(None if name == "-" else Path(name).stat().st_size) as bar:
        result = with_gateway(lambda gateway: _send(gateway, _chunks(file, bar), upload))
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


def _bar(size_bytes: int | None) -> "Progress":
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    progress.add_task("import", total=size_bytes)
    return progress


async def _chunks(file: BinaryIO, bar: "Progress") -> AsyncIterator[bytes]:
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
