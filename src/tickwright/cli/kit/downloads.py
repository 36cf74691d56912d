"""Fetching a report's file: into a new file beside the wanted one, checked, and only then under its name."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from tickwright.cli.kit.gateway import Gateway, read_answer
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.ids import random_token

ACCEPT = {"accept": "application/json"}


class _Incoming:
    """Bytes on their way into a file, counted and hashed."""

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
        """SHA-256 of what came, hexadecimal."""
        return self._hash.hexdigest()


async def download(gateway: Gateway, report_id: int, output: str | None) -> dict[str, Any]:
    """Fetch a report's file and return where it is, with its figures.

    Args:
        gateway: To Tickwright.
        report_id: Of a finished report.
        output: A file or a folder; the file's own name in this folder by default. What is there is replaced.

    Raises:
        Rejected: ``file_unwritable``, or what the API says (``report_not_finished``, ``file_expired``). Permanent.
        Unavailable: ``download_broken``, ``download_damaged``: what came is not the file. Retry.
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
        raise Unavailable("download_damaged", f"{incoming.bytes} bytes came that are not the file; try again")
