"""The built files, read once: what is in memory is all that can be asked for, so no path leads anywhere else."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
HASHED = "assets/"
"""Below it a file's name holds the hash of what is in it, so it may be kept for ever."""
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/vnd.microsoft.icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_PACKED_ALREADY = frozenset({".png", ".woff2", ".ico"})
_WORTH_IT = 0.9


@dataclass(frozen=True, slots=True)
class Variant:
    """One encoding of a file."""

    body: bytes
    etag: bytes


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file; ``packed`` is it in gzip, where that saves something."""

    content_type: bytes
    plain: Variant
    packed: Variant | None
    hashed: bool


def has_known_type(name: str) -> bool:
    """Whether ``name`` ends as a file does that could be served."""
    return Path(name).suffix in _TYPES


def read_files(folder: Path) -> Mapping[str, StaticFile]:
    """Return every file below ``folder`` that browsers may have, by its path; none where there is no such folder."""
    found = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix in _TYPES)
    return {name: _read(file, name) for file in found for name in [file.relative_to(folder).as_posix()]}


def _read(file: Path, name: str) -> StaticFile:
    body = file.read_bytes()
    packed = None if file.suffix in _PACKED_ALREADY else gzip.compress(body, 9, mtime=0)
    if packed is not None and len(packed) > _WORTH_IT * len(body):
        packed = None
    return StaticFile(
        _TYPES[file.suffix].encode(),
        _variant(body),
        None if packed is None else _variant(packed),
        name.startswith(HASHED),
    )


def _variant(body: bytes) -> Variant:
    return Variant(body, f'"{sha256(body).hexdigest()[:32]}"'.encode())
