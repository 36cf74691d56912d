"""The dashboard as an ASGI application: its files, and ``index.html`` for every address of a view.

It answers ``GET`` and ``HEAD``, has no state, makes no requests and knows no users: the dashboard fetches its data from
the API. Inline scripts are forbidden; inline styles need the nonce of the answer.
"""

import gzip
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tickwright.ports.ids import random_token

# The built files are read once. Only files in memory are served, so no path leads anywhere else.

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
ASSETS = "assets/"
"""Folder of the files that ``index.html`` loads, under the build's hash: ``assets/HASH/index.js``.

Imports between them are relative, so all are loaded under that hash and can be cached forever, while their names stay
the same from build to build. They are also served without the hash, to be revalidated.
"""
BUILD_CHARS = 16
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
_COMPRESSED_TYPES = frozenset({".png", ".woff2", ".ico"})
_GZIP_RATIO_MAX = 0.9


@dataclass(frozen=True, slots=True)
class Variant:
    """One encoding of a file."""

    body: bytes
    etag: bytes


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file; ``packed`` is its gzip form, if that is smaller."""

    content_type: bytes
    plain: Variant
    packed: Variant | None


def has_known_type(name: str) -> bool:
    """Whether ``name`` has the suffix of a file that can be served."""
    return Path(name).suffix in _TYPES


def read_files(folder: Path) -> Mapping[str, StaticFile]:
    """Return every servable file below ``folder`` by its path; empty if there is no such folder."""
    found = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix in _TYPES)
    return {file.relative_to(folder).as_posix(): _read(file) for file in found}


def build_of(files: Mapping[str, StaticFile]) -> str:
    """Return the hash of a build, which changes with any name or byte."""
    whole = sha256(b"".join(name.encode() + b"\0" + file.plain.etag for name, file in sorted(files.items())))
    return whole.hexdigest()[:BUILD_CHARS]


def _read(file: Path) -> StaticFile:
    body = file.read_bytes()
    packed = None if file.suffix in _COMPRESSED_TYPES else gzip.compress(body, 9, mtime=0)
    if packed is not None and len(packed) > _GZIP_RATIO_MAX * len(body):
        packed = None
    return StaticFile(_TYPES[file.suffix].encode(), _variant(body), None if packed is None else _variant(packed))


def _variant(body: bytes) -> Variant:
    return Variant(body, f'"{sha256(body).hexdigest()[:32]}"'.encode())


Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
NONCE, BASE = b"%NONCE%", b"%BASE%"
NONCE_BYTES = 18
FOR_EVER = b"public, max-age=31536000, immutable"
REVALIDATE = b"no-cache"
NEVER = b"no-store"
_FEATURES = ("camera", "display-capture", "geolocation", "hid", "microphone", "midi", "payment", "serial", "usb")
SAFE: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", ", ".join(f"{feature}=()" for feature in _FEATURES).encode()),
]
_TEXT = b"text/plain; charset=utf-8"
_NOT_BUILT = (
    b"The page is not built in this checkout. Build it (this needs Node): python scripts/page.py build\n"
    b"The REST API needs no page; it is below v1/, and v1/openapi.json describes it.\n"
)


def policy(nonce: str) -> bytes:
    """Return the content security policy of an answer. It also forbids frames and a foreign base."""
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'self'; form-action 'self'; "
        "frame-ancestors 'none'"
    ).encode()


class Page:
    """The ASGI application; see the module.

    Browsers see it under ``prefix``, such as ``/tickwright``; empty at the root. It is in the ``<base>`` of the
    dashboard; paths of requests do not contain it.
    """

    def __init__(self, prefix: str = "", folder: Path = STATIC) -> None:
        self._base = f"{prefix}/".encode()
        self._files = read_files(folder)
        self._build = f"{ASSETS}{build_of(self._files)}/"

    async def __call__(self, scope: Scope, _receive: Any, send: Send) -> None:
        """Answer one request."""
        status, headers, body = self._answer(scope["method"], scope["path"], scope["headers"])
        headers = [*headers, *SAFE, (b"content-length", str(len(body)).encode())]
        if status == 304:
            headers.pop()
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, method: str, path: str, given: Headers) -> tuple[int, Headers, bytes]:
        if method not in {"GET", "HEAD"}:
            return _text_answer(405, b"this address answers to GET and HEAD\n", (b"allow", b"GET, HEAD"))
        if _is_unsafe(path):
            return _text_answer(404, b"there is nothing at this address\n")
        name = path[1:]
        versioned = name.startswith(self._build)
        file = self._files.get(ASSETS + name.removeprefix(self._build) if versioned else name)
        if file is not None and name != INDEX:
            return _file(file, given, FOR_EVER if versioned else REVALIDATE)
        if name.startswith(ASSETS) or ("/" not in name and name != INDEX and has_known_type(name)):
            return _text_answer(404, b"there is no such file; reload the page, it may be of another release\n")
        return self._index()

    def _index(self) -> tuple[int, Headers, bytes]:
        index = self._files.get(INDEX)
        if index is None:
            return _text_answer(503, _NOT_BUILT)
        nonce = random_token(NONCE_BYTES)
        body = index.plain.body.replace(NONCE, nonce.encode()).replace(BASE, self._base)
        body = body.replace(f'"./{ASSETS}'.encode(), f'"./{self._build}'.encode())
        headers = [(b"content-type", index.content_type), (b"cache-control", NEVER)]
        return 200, [*headers, (b"content-security-policy", policy(nonce))], body


def _file(file: StaticFile, given: Headers, kept: bytes) -> tuple[int, Headers, bytes]:
    chosen = file.packed if file.packed is not None and _takes_gzip(given) else file.plain
    headers: Headers = [
        (b"etag", chosen.etag),
        (b"cache-control", kept),
        (b"vary", b"accept-encoding"),
        (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    ]
    if _is_current(chosen, given):
        return 304, headers, b""
    headers.append((b"content-type", file.content_type))
    if chosen is not file.plain:
        headers.append((b"content-encoding", b"gzip"))
    return 200, headers, chosen.body


def _text_answer(status: int, text: bytes, *more: tuple[bytes, bytes]) -> tuple[int, Headers, bytes]:
    return status, [(b"content-type", _TEXT), (b"cache-control", NEVER), *more], text


def _is_unsafe(path: str) -> bool:
    """Whether a path cannot come from our links: empty steps, steps up, characters that servers read differently."""
    odd = any(ord(character) < 0x20 or character in "\\\x7f" for character in path)
    steps = path[1:].split("/")
    empty = not path.startswith("/") or "" in steps[:-1]
    return odd or empty or not {".", ".."}.isdisjoint(steps)


def _takes_gzip(given: Headers) -> bool:
    for offer in _values(given, b"accept-encoding"):
        name, _, weight = offer.partition(b";")
        if name.strip().lower() in {b"gzip", b"*"}:
            return weight.replace(b" ", b"").rstrip(b"0").rstrip(b".") not in {b"q=", b"q=0"}
    return False


def _is_current(variant: Variant, given: Headers) -> bool:
    return any(tag.removeprefix(b"W/") in {variant.etag, b"*"} for tag in _values(given, b"if-none-match"))


def _values(given: Headers, name: bytes) -> Iterator[bytes]:
    return (piece.strip() for found, value in given if found == name for piece in value.split(b","))
