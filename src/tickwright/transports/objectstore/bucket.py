"""Objects in a bucket, through obstore: S3, S3-compatible stores and Google Cloud Storage.

Every request is small and bounded in time. A large file is uploaded in parts and read in ranges, so a stalled transfer
is noticed within one part, and a slow reader keeps no connection open. obstore repeats a failed request a few times
within seconds; further repetition is up to the caller.

obstore's error texts contain URLs, whole answers and internals. So an error contains only the store's own code and
message, and does not keep obstore's error as its cause.
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
from tickwright.transports.objectstore.locations import (
    Place,
    check_key,
    clean_prefix,
    content_headers,
    local_file_errors,
    new_file,
    object_missing,
    refused,
    unavailable,
    write_all,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig


# ---------------------------------------------------------------------- errors

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([\w.-]{1,100})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_RETRIABLE = frozenset({408, 412, 425, 429})  # 412: the object was replaced during the read
_RETRIABLE_TEXTS = ("<Code>RequestTimeout<", "<Code>OperationAborted<")
_REDIRECTED = "incorrectly configured region"
_METADATA = "169.254.169.254"  # obstore requests a role's credentials from this address if it has none
_NO_CREDENTIALS = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role"
_SIGNS = (
    ("ConnectionRefused", "connection refused"),
    ("dns error", "its name is not known"),
    ("TimedOut", "no answer in time"),
)
"""Signs in obstore's text of a request that got no answer, with the reason to report."""


@contextmanager
def bucket_errors(where: str, what: str) -> Iterator[None]:
    """Translate errors of obstore.

    ``what`` is the address of the object that a "not found" refers to, or empty. A missing bucket is
    ``object_store_refused``, not ``object_missing``.
    """
    try:
        yield
    except FileNotFoundError as error:
        if what and "<Code>NoSuchBucket<" not in str(error):
            raise object_missing(what) from None
        raise refused(where, _reason(str(error))) from None
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise refused(where, _reason(str(error))) from None
    except (BaseError, TimeoutError, OSError) as error:
        raise _of_text(where, str(error)) from None


def _of_text(where: str, text: str) -> Rejected | Unavailable:
    """Classify by the HTTP status in obstore's text as refused or unavailable; no status means no answer."""
    status = _STATUS.search(text)
    code = int(status[1]) if status else 0
    again = not 400 <= code < 500 or code in _RETRIABLE or any(part in text for part in _RETRIABLE_TEXTS)
    if _REDIRECTED in text:
        return refused(where, "the bucket is in another region: set AWS_REGION")
    return (unavailable if again else refused)(where, _reason(text))


def _reason(text: str) -> str:
    """Return only the store's code and message, or the reason for a missing answer."""
    status, code, message = _STATUS.search(text), _CODE.search(text), _MESSAGE.search(text)
    if _METADATA in text:
        return _NO_CREDENTIALS
    if code:
        shown = f"{code[1]}: {message[1]}" if message else code[1]
        return " ".join(html.unescape(shown).split())[:300]
    if status:
        return f"it answered {status[1]}"
    return next((reason for sign, reason in _SIGNS if sign in text), "it does not answer, or it broke off")


# ---------------------------------------------------------------------- client


class Bounds(NamedTuple):
    """Time limits of requests, in seconds.

    Attributes:
        connect_s: For a connection to be made.
        request_s: For one request with its body of at most 8 MiB. Bounds a stalled transfer.
        retries: How often obstore repeats a failed request, after 0.2 s, 0.4 s, ...
        retry_within_s: obstore repeats nothing after this time.
        call_s: For one step of a call (a part, a range, a page of a listing) with its repetitions.
        abort_s: For aborting a failed upload.
    """

    connect_s: float = 3.0
    request_s: float = 30.0
    retries: int = 3
    retry_within_s: float = 10.0
    call_s: float = 45.0
    abort_s: float = 5.0


BOUNDS = Bounds()


def open_bucket(place: Place, environment: Mapping[str, str], bounds: Bounds) -> S3Store | GCSStore:
    """Return the client, without a request to the store.

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
    except (BaseError, ValueError, OSError):  # obstore's text may contain secrets
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
    """Return the options set in the environment; the first variable set wins. Refuse an endpoint with a user."""
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
PARTS_MAX = 9_000  # the limit of S3 is 10,000
RANGE_BYTES = PART_BYTES
KEYS_AT_ONCE = 1_000
LINK_LASTS_MAX = timedelta(days=7)

T = TypeVar("T")


class BucketStore:
    """The store for ``s3://`` and ``gs://`` URLs. obstore also reads roles and tokens from the environment.

    Args:
        place: Of scheme ``s3`` or ``gs``.
        environment: ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL`` or ``AWS_ENDPOINT``, ``AWS_ACCESS_KEY_ID``,
            ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.
        bounds: Time limits.

    Raises:
        Rejected: ``invalid_object_store``: the endpoint or the form of the credentials is unusable. Permanent.

    Invariants:
        OBB-1: an interrupted upload has no key; its parts are aborted if the store is reachable.
        OBB-2: bytes of two objects are never read as one: every range requires the same ETag.
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
        """Upload in one request below 8 MiB, otherwise in parts of 8 MiB, two at once."""
        check_key(key)
        with local_file_errors(path):
            file = await asyncio.to_thread(path.open, "rb", buffering=0)
        with file:
            size = os.fstat(file.fileno()).st_size
            sent = await (self._send(key, file, path) if size < PART_BYTES else self._send_parts(key, file, path, size))
        kept = await self.size(key)
        if kept != sent:
            with suppress(Rejected, Unavailable):  # the error to report is the lost upload
                await self.delete([key])
            raise unavailable(self.address(key), f"{kept} bytes of {sent} are there")
        return sent

    async def fetch_file(self, key: str, path: Path) -> int:
        """Fetch the object range by range; remove an incomplete file."""
        fetched = 0
        with new_file(path) as target:
            async for piece in self.read(key):
                with local_file_errors(path):
                    await asyncio.to_thread(write_all, target, piece)
                fetched += len(piece)
        return fetched

    async def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Yield the object from byte ``start`` in pieces of up to 1 MiB, fetched in ranges of 8 MiB."""
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
        """Return the object's size in bytes; ``None`` if it does not exist."""
        check_key(key)
        try:
            return int((await self._head(key))["size"])
        except Rejected as error:
            if error.code != "object_missing":
                raise
            return None

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, a thousand per request."""
        for key in keys:
            check_key(key)
        for start in range(0, len(keys), KEYS_AT_ONCE):
            await self._delete(list(keys[start : start + KEYS_AT_ONCE]))

    async def listing(self, prefix: str, limit: int) -> list[StoredObject]:
        """Return at most ``limit`` objects below ``prefix``; ``a/bc`` is not below ``a/b``."""
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

        The browser saves the object under the last segment of its key: the upload has set such headers.
        """
        check_key(key)
        if not timedelta() < lasts <= LINK_LASTS_MAX:
            raise InvariantBroken("invalid_link", "a link lasts up to seven days")
        with bucket_errors(self._where, ""):
            return await self._bounded(obstore.sign_async(self._store, "GET", key, lasts))

    def close(self) -> None:
        """Do nothing: idle connections close by themselves."""

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
        """Join the parts. A cancelled call still waits up to ``abort_s``: parts that are never aborted cost money."""
        joining = asyncio.ensure_future(writer.close())
        try:
            await self._bounded(asyncio.shield(joining))
        except BaseException:
            with suppress(BaseError, OSError, TimeoutError):
                await asyncio.wait_for(joining, self._bounds.abort_s)
            raise

    async def _abort(self, writer: Any) -> None:
        with suppress(BaseError, OSError, TimeoutError):  # the store is unavailable; the parts left there have no key
            async with asyncio.timeout(self._bounds.abort_s):
                await writer.__aexit__(RuntimeError, RuntimeError(), None)

    async def _head(self, key: str) -> Any:
        """Return the object's metadata.

        An error answer to HEAD has no body. The GET that follows returns the reason, also if the bucket itself is
        missing.
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
        except Rejected as error:  # Google Cloud Storage reports an error for missing objects
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
