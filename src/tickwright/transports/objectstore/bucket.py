"""Objects in a bucket, through obstore: S3 and compatible stores, and Google's store.

Every request is bounded in time and small: a large file is uploaded in parts and read in ranges, so a transfer that
stalls is noticed within one of them, and a slow reader keeps no connection open. The library repeats a request that
failed, a few times and within seconds; the caller repeats the rest.

The library's error texts hold URLs, whole answers and its own insides. So an error of ours has only what the store
itself says of the matter, and the foreign error is not kept as its cause.
"""

import asyncio
import html
import os
import re
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import GCSStore, S3Store

from tickwright.domain.errors import InvariantBroken, Rejected, Unavailable
from tickwright.ports.objects import StoredObject
from tickwright.transports.objectstore.errors import (
    local_file_errors,
    new_file,
    object_missing,
    refused,
    unavailable,
    write_all,
)
from tickwright.transports.objectstore.locations import Place, check_key, clean_prefix, content_headers

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig


# ---------------------------------------------------------------------- errors

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([\w.-]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_AGAIN = frozenset({408, 412, 425, 429})  # 412: the object was replaced while it was read
_AGAIN_WORDS = ("<Code>RequestTimeout<", "<Code>OperationAborted<")
_REDIRECTED = "incorrectly configured region"
_METADATA = "169.254.169.254"  # where the library asks for a role's credentials when it was given none
_NO_CREDENTIALS = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
_SIGNS = (
    ("ConnectionRefused", "connection refused"),
    ("dns error", "its name is not known"),
    ("TimedOut", "no answer in time"),
)
"""What the library's own insides say where nothing was answered."""


@contextmanager
def bucket_errors(where: str, what: str) -> Iterator[None]:
    """Translate what obstore raises; ``what`` is the address of the one object that a "not found" is about, or empty.

    ``object_missing`` only where the answer does not say that the bucket itself is missing.
    """
    try:
        yield
    except FileNotFoundError as error:
        if what and "<Code>NoSuchBucket<" not in str(error):
            raise object_missing(what) from None
        raise refused(where, _said(str(error))) from None
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise refused(where, _said(str(error))) from None
    except (BaseError, TimeoutError, OSError) as error:
        raise _of_text(where, str(error)) from None


def _of_text(where: str, text: str) -> Rejected | Unavailable:
    """Tell a no from a failure by the status that the library repeats; what has no status did not answer."""
    status = _STATUS.search(text)
    code = int(status[1]) if status else 0
    again = not 400 <= code < 500 or code in _AGAIN or any(word in text for word in _AGAIN_WORDS)
    if _REDIRECTED in text:
        return refused(where, "the bucket is in another region: set AWS_REGION")
    return (unavailable if again else refused)(where, _said(text))


def _said(text: str) -> str:
    """Return what the store said, or why it said nothing; never more of the text than that."""
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    if _METADATA in text:
        return _NO_CREDENTIALS
    if code:
        words = f"{code[1]}: {message[1]}" if message else code[1]
        return " ".join(html.unescape(words).split())[:300]
    if status:
        return f"it answered {status[1]}"
    return next((reason for sign, reason in _SIGNS if sign in text), "it does not answer, or it broke off")


# ---------------------------------------------------------------------- client


class Bounds(NamedTuple):
    """How long things may take, in seconds.

    Attributes:
        connect_s: Making a connection.
        request_s: One request with its body, at most 8 MiB: a transfer that stands still ends here.
        retries: How often the library repeats a request that failed, after 0.2 s, 0.4 s, ...
        retry_within_s: After so long it repeats nothing.
        call_s: One step of a call with its repetitions: a part, a range, a page of a listing.
        abort_s: Giving up an upload that failed.
    """

    connect_s: float = 3.0
    request_s: float = 30.0
    retries: int = 3
    retry_within_s: float = 10.0
    call_s: float = 45.0
    abort_s: float = 5.0


BOUNDS = Bounds()


def open_bucket(place: Place, environment: Mapping[str, str], bounds: Bounds) -> S3Store | GCSStore:
    """Return the client; nothing is asked of the store yet.

    Raises:
        Rejected: ``invalid_object_store``. Permanent.
    """
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=bounds.connect_s),
        "timeout": timedelta(seconds=bounds.request_s),
    }
    retry: RetryConfig = {
        "max_retries": bounds.retries,
        "retry_timeout": timedelta(seconds=bounds.retry_within_s),
        "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=2), "base": 2},
    }
    prefix = place.path or None
    try:
        config = _config(environment, _GS if place.scheme == "gs" else _S3)
        client["allow_http"] = config.get(_ENDPOINT[place.scheme], "").startswith("http://")
        store = GCSStore if place.scheme == "gs" else S3Store
        return store(place.bucket, prefix=prefix, config=config, client_options=client, retry_config=retry)
    except (BaseError, ValueError, OSError):  # the library's words may hold what is secret
        raise Rejected(
            "invalid_object_store", f"{place.address('')}: its credentials or settings in the environment are unusable"
        ) from None


_S3 = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN",),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
_GS = {
    "base_url": ("STORAGE_EMULATOR_HOST",),
    "service_account": ("GOOGLE_SERVICE_ACCOUNT",),
    "service_account_key": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "application_credentials": ("GOOGLE_APPLICATION_CREDENTIALS",),
}
_ENDPOINT = {"s3": "endpoint", "gs": "base_url"}


def _config(environment: Mapping[str, str], names: Mapping[str, Sequence[str]]) -> Any:
    """Return what the environment says, first name first; an endpoint with a password in it is refused."""
    found = {
        option: next((environment[name] for name in each if environment.get(name)), "")
        for option, each in names.items()
    }
    for option in _ENDPOINT.values():
        _check_endpoint(found.get(option, ""), names.get(option, ()))
    return {option: value for option, value in found.items() if value}


def _check_endpoint(url: str, names: Sequence[str]) -> None:
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.username):
        text = f"{' or '.join(names)}: write http://HOST:PORT or https://HOST, without a user"
        raise Rejected("invalid_object_store", text)


MIB = 1024 * 1024
PIECE_BYTES = MIB
PART_BYTES = 8 * MIB
PARTS_AT_ONCE = 2
PARTS_MAX = 9_000  # S3 takes 10,000
RANGE_BYTES = PART_BYTES
KEYS_AT_ONCE = 1_000
LINK_LASTS_MAX = timedelta(days=7)

T = TypeVar("T")


class BucketStore:
    """``s3://`` and ``gs://``. What else obstore reads from the environment (roles, tokens) holds as well.

    Args:
        place: Of scheme ``s3`` or ``gs``.
        environment: ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL`` or ``AWS_ENDPOINT``, ``AWS_ACCESS_KEY_ID``,
            ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.
        bounds: Times.

    Raises:
        Rejected: ``invalid_object_store``, the endpoint or the credentials' form is unusable. Permanent.

    Invariants:
        OBB-1: an upload that broke off has no key; its parts are given up, if the store can be reached.
        OBB-2: bytes of two objects are never read as one: every range asks for the same entity.
    """

    def __init__(self, place: Place, environment: Mapping[str, str], *, bounds: Bounds = BOUNDS) -> None:
        self._place = place
        self._bounds = bounds
        self._where = place.address("")
        self._store = open_bucket(place, environment, bounds)

    def address(self, key: str) -> str:
        """Return ``s3://bucket/prefix/key``."""
        return self._place.address(key)

    async def put_file(self, key: str, path: Path) -> int:
        """Upload in one request below 8 MiB, else in parts of 8 MiB, two at once."""
        check_key(key)
        with local_file_errors(path):
            file = await asyncio.to_thread(path.open, "rb", buffering=0)
        with file:
            size = os.fstat(file.fileno()).st_size
            sent = await (self._send(key, file, path) if size < PART_BYTES else self._send_parts(key, file, path, size))
        kept = await self.size(key)
        if kept != sent:
            with suppress(Rejected, Unavailable):  # what was lost is the news
                await self.delete([key])
            raise unavailable(self.address(key), f"{kept} bytes of {sent} are there")
        return sent

    async def fetch_file(self, key: str, path: Path) -> int:
        """Fetch the object range by range; a file that is not whole is removed."""
        fetched = 0
        with new_file(path) as target:
            async for piece in self.read(key):
                with local_file_errors(path):
                    await asyncio.to_thread(write_all, target, piece)
                fetched += len(piece)
        return fetched

    async def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Give the object from byte ``start`` on in pieces of up to 1 MiB, of ranges of 8 MiB."""
        check_key(key)
        meta = await self._head(key)
        for first in range(start, meta["size"], RANGE_BYTES):
            end = min(first + RANGE_BYTES, meta["size"])
            with bucket_errors(self._where, self.address(key)):
                data = await self._bounded(self._range(key, first, end, meta["e_tag"]))
            if len(data) != end - first:
                raise unavailable(self.address(key), f"{len(data)} bytes of {end - first} came back")
            for at in range(0, len(data), PIECE_BYTES):
                yield data[at : at + PIECE_BYTES]

    async def size(self, key: str) -> int | None:
        """Return the object's bytes; ``None`` if there is none."""
        check_key(key)
        try:
            return int((await self._head(key))["size"])
        except Rejected as error:
            if error.code != "object_missing":
                raise
            return None

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, a thousand in a request."""
        for key in keys:
            check_key(key)
        for start in range(0, len(keys), KEYS_AT_ONCE):
            await self._delete(list(keys[start : start + KEYS_AT_ONCE]))

    async def listing(self, prefix: str, limit: int) -> list[StoredObject]:
        """Return at most ``limit`` objects below ``prefix``; ``a/b`` is not below ``a/bc``."""
        below = clean_prefix(prefix)
        found: list[StoredObject] = []
        with bucket_errors(self._where, ""):
            pages = self._store.list(below or None, chunk_size=max(1, min(limit, KEYS_AT_ONCE))).__aiter__()
            while len(found) < limit:
                page = await self._bounded(_next_page(pages))
                if not page:
                    break
                found += [StoredObject(meta["path"], meta["size"]) for meta in page]
        return found[:limit]

    async def link(self, key: str, *, lasts: timedelta) -> str | None:
        """Return a signed URL; ``lasts`` is above zero and at most seven days.

        The browser saves the object under the last part of its key, because the upload said so.
        """
        check_key(key)
        if not timedelta() < lasts <= LINK_LASTS_MAX:
            raise InvariantBroken("invalid_link", "a link lasts up to seven days")
        with bucket_errors(self._where, ""):
            return await self._bounded(obstore.sign_async(self._store, "GET", key, lasts))

    def close(self) -> None:
        """Do nothing: connections end by themselves when they are idle."""

    async def _send(self, key: str, file: FileIO, path: Path) -> int:
        with local_file_errors(path):
            data = await asyncio.to_thread(file.read)
        with bucket_errors(self._where, ""):
            await self._bounded(self._store.put_async(key, data, use_multipart=False, attributes=content_headers(key)))
        return len(data)

    async def _send_parts(self, key: str, file: FileIO, path: Path, size: int) -> int:
        with bucket_errors(self._where, ""):
            writer: Any = obstore.open_writer_async(
                self._store,
                key,
                buffer_size=max(PART_BYTES, -(-size // PARTS_MAX)),
                max_concurrency=PARTS_AT_ONCE,
                attributes=content_headers(key),
            )
            try:
                sent = await self._write(writer, file, path)
                await self._finish(writer)
            except BaseException:
                await self._abort(writer)
                raise
        return sent

    async def _write(self, writer: Any, file: FileIO, path: Path) -> int:
        sent = 0
        while True:
            with local_file_errors(path):
                piece = await asyncio.to_thread(file.read, PIECE_BYTES)
            if not piece:
                return sent
            await self._bounded(writer.write(piece))
            sent += len(piece)

    async def _finish(self, writer: Any) -> None:
        """Join the parts. Cancelled, it waits a little for what it began: parts that nobody gives up cost money."""
        joining = asyncio.ensure_future(writer.close())
        try:
            await self._bounded(asyncio.shield(joining))
        except BaseException:
            with suppress(BaseError, OSError, TimeoutError):
                await asyncio.wait_for(joining, self._bounds.abort_s)
            raise

    async def _abort(self, writer: Any) -> None:
        with suppress(BaseError, OSError, TimeoutError):  # the store is away; what remains has no key
            async with asyncio.timeout(self._bounds.abort_s):
                await writer.__aexit__(RuntimeError, RuntimeError(), None)

    async def _head(self, key: str) -> Any:
        """Return what the store knows of the object.

        Its no to HEAD has no body: it says neither why, nor whether the bucket itself is missing. GET says both.
        """
        with suppress(Rejected), bucket_errors(self._where, self.address(key)):
            return await self._bounded(self._store.head_async(key))
        with bucket_errors(self._where, self.address(key)):
            return (await self._bounded(self._store.get_async(key))).meta

    async def _range(self, key: str, start: int, end: int, e_tag: str | None) -> bytes:
        options: Any = {"range": (start, end), **({"if_match": e_tag} if e_tag else {})}
        result = await self._store.get_async(key, options=options)
        return bytes(await result.bytes_async())

    async def _delete(self, keys: list[str]) -> None:
        try:
            with bucket_errors(self._where, "one of several"):
                await self._bounded(self._store.delete_async(keys))
        except Rejected as error:  # Google's store says of a missing object that it is missing
            if error.code != "object_missing":
                raise
            if len(keys) > 1:
                for key in keys:
                    await self._delete([key])

    async def _bounded(self, call: Awaitable[T]) -> T:
        async with asyncio.timeout(self._bounds.call_s):
            return await call


async def _next_page(pages: Any) -> Sequence[Any]:
    try:
        page: Sequence[Any] = await anext(pages)
    except StopAsyncIteration:
        return ()
    return page
