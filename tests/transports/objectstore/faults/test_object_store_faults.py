"""An object store that is unavailable, slow, failing, or killed midway: no partial object, and no hang."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kit.object_store import BUCKET, USER, ObjectServer
from kit.ports import free_port
from kit.processes import spawn
from kit.servers import started
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually, eventually_async
from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.ports.objects import ObjectStore
from tickwright.transports.objectstore.bucket import BOUNDS, Bounds, BucketStore
from tickwright.transports.objectstore.folder import FolderStore, Threads
from tickwright.transports.objectstore.locations import UPLOADS, parse_place
from tickwright.transports.objectstore.plugin import open_store

MIB = 1024 * 1024
LARGE = 40 * MIB
HALF_WAY = 20 * MIB
FAST = Bounds(connect_s=1, request_s=1.5, retries=2, retry_within_s=2, call_s=4, abort_s=2)
ENOUGH_S = FAST.call_s + 2 * FAST.abort_s + 2
"""The bound on one call with ``FAST``, on a busy machine."""
SECRETS = (USER["AWS_SECRET_ACCESS_KEY"], "X-Amz-Signature", "<", "Debug")


def make_file(path: Path, size: int) -> Path:
    """Write ``size`` random bytes."""
    path.write_bytes(os.urandom(size))
    return path


def bucket(port: int, bounds: Bounds = FAST, *, name: str = BUCKET, prefix: str = "") -> BucketStore:
    """Return a store at a port of this machine, with a prefix of its own."""
    place = parse_place(f"s3://{name}/{prefix or secrets.token_hex(8)}")
    return BucketStore(place, {**USER, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}, bounds=bounds)


async def content(store: ObjectStore, key: str) -> bytes:
    """Return an object, read piece by piece."""
    return b"".join([piece async for piece in store.read(key)])


def calls(store: ObjectStore, tmp_path: Path) -> Mapping[str, Callable[[], Awaitable[Any]]]:
    """Return every call to the store, by name."""
    small, large = make_file(tmp_path / "small", 10), make_file(tmp_path / "large", 9 * MIB)
    return {
        "put": lambda: store.put_file("a/1", small),
        "put in parts": lambda: store.put_file("a/2", large),
        "fetch": lambda: store.fetch_file("a/1", tmp_path / "back"),
        "read": lambda: content(store, "a/1"),
        "size": lambda: store.size("a/1"),
        "delete": lambda: store.delete(["a/1", "a/2"]),
        "listing": lambda: store.listing("a", 10),
    }


async def failures(store: ObjectStore, tmp_path: Path) -> list[TickwrightError]:
    """Return the errors of all calls, made at once."""
    return await asyncio.gather(*(failure(call()) for call in calls(store, tmp_path).values()))


async def failure(call: Awaitable[Any]) -> TickwrightError:
    """Return the error of a call, which must come in time and have no secret."""
    async with asyncio.timeout(ENOUGH_S):
        with pytest.raises((Rejected, Unavailable)) as raised:
            await call
    error: TickwrightError = raised.value
    assert not any(word in error.message for word in SECRETS), error.message
    assert error.message.isprintable()
    return error


@pytest.fixture
async def proxy(object_server: ObjectServer) -> AsyncIterator[TcpProxy]:
    """A proxy to the shared S3."""
    async with TcpProxy("127.0.0.1", object_server.port) as proxy:
        yield proxy


@pytest.fixture
def prefix() -> str:
    """The prefix of the test's own keys."""
    return secrets.token_hex(8)


@pytest.fixture
def unlucky(proxy: TcpProxy, prefix: str) -> BucketStore:
    """A store behind the proxy, with short bounds."""
    return bucket(proxy.port, prefix=prefix)


@pytest.fixture
def patient(proxy: TcpProxy, prefix: str) -> BucketStore:
    """The same with the bounds of production, for calls that must succeed on a busy machine, too."""
    return bucket(proxy.port, BOUNDS, prefix=prefix)


async def at(proxy: TcpProxy, passed: int, direction: Any, then: Callable[[], object]) -> None:
    """Call ``then`` as soon as so many bytes have passed the proxy."""
    begun = proxy.flows[direction].passed_bytes
    await eventually_async(lambda: proxy.flows[direction].passed_bytes - begun >= passed, 30)
    then()


# --- the store does not answer ---------------------------------------------------------------------------------------


async def test_a_closed_port_is_unavailable_within_seconds(tmp_path: Path) -> None:
    """With the bounds of production; no file is left on this side."""
    store = bucket(free_port(), BOUNDS)
    for error in await failures(store, tmp_path):
        assert (error.code, error.message.endswith("connection refused")) == ("object_store_unavailable", True)
    assert not (tmp_path / "back").exists()


async def test_a_silent_store_is_unavailable_in_time(proxy: TcpProxy, unlucky: BucketStore, tmp_path: Path) -> None:
    """It reads requests and never answers: each call ends by its bounds. A late object is whole, or missing."""
    proxy.hold()
    assert {error.code for error in await failures(unlucky, tmp_path)} == {"object_store_unavailable"}
    proxy.heal()
    for late in await unlucky.listing("", 10):
        assert late.bytes == 10
        assert await unlucky.size(late.key) in {10, None}  # a delete may arrive after the listing


@pytest.mark.matrix
@pytest.mark.parametrize("each_way_s", [0.1, 2.0])
async def test_a_distant_store_is_only_slow(
    proxy: TcpProxy, patient: BucketStore, tmp_path: Path, each_way_s: float
) -> None:
    """All calls that a report needs succeed within the bounds of production, also for an object in several parts."""
    small, large = make_file(tmp_path / "small", 10), make_file(tmp_path / "large", 9 * MIB)
    proxy.delay(each_way_s)
    await patient.put_file("a/1", small)
    await patient.put_file("a/2", large)
    assert {one.key: one.bytes for one in await patient.listing("a", 10)} == {"a/1": 10, "a/2": 9 * MIB}
    assert await content(patient, "a/1") == small.read_bytes()
    await patient.fetch_file("a/2", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == large.read_bytes()
    await patient.delete(["a/1", "a/2"])
    assert list(await patient.listing("a", 10)) == []


@asynccontextmanager
async def answering(status: int, body: str = "", headers: Mapping[str, str] | None = None) -> AsyncIterator[int]:
    """Serve one answer to every request, and yield the port."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=status, text=body, content_type="application/xml", headers=headers)

    app = web.Application(client_max_size=64 * MIB)
    app.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield port
    finally:
        await runner.cleanup()


def saying(code: str, message: str = "Please &amp; thank you.") -> str:
    """Return an error as S3 writes it, with a part that must never be shown."""
    return (
        f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message><Signature>x</Signature></Error>'
    )


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (503, saying("SlowDown"), "object_store_unavailable"),
        (500, "", "object_store_unavailable"),
        (502, "<html>oops</html>", "object_store_unavailable"),
        (429, "", "object_store_unavailable"),
        (408, "", "object_store_unavailable"),
        (400, saying("RequestTimeout"), "object_store_unavailable"),
        (400, saying("ExpiredToken"), "object_store_refused"),
        (401, "", "object_store_refused"),
        (403, saying("SignatureDoesNotMatch"), "object_store_refused"),
        (301, saying("PermanentRedirect"), "object_store_refused"),
        (405, "", "object_store_refused"),
    ],
)
async def test_the_answer_of_a_store_decides_whether_a_retry_helps(
    tmp_path: Path, status: int, body: str, code: str
) -> None:
    """A refusal is permanent, a fault is not; the error quotes the answer, without a secret."""
    async with answering(status, body) as port:
        for error in await failures(bucket(port, BOUNDS), tmp_path):
            assert (error.code, error.message.startswith("s3://tickwright/")) == (code, True), error.message
            assert ("Please & thank you." in error.message) or status not in (400, 403)


async def test_a_missing_bucket_is_refused(object_server: ObjectServer, tmp_path: Path) -> None:
    """Also where S3 answers as if only the object were missing: the report's file is not reported as missing."""
    store = bucket(object_server.port, name="never-created")
    for error in await failures(store, tmp_path):
        assert (error.code, "NoSuchBucket" in error.message) == ("object_store_refused", True)


async def test_unknown_credentials_are_refused(tmp_path: Path) -> None:
    """By a server that knows no such key; the secret is in no text."""
    with started(ObjectServer(strict=True)) as server:
        for error in await failures(bucket(server.port), tmp_path):
            assert (error.code, "InvalidAccessKeyId" in error.message) == ("object_store_refused", True)


# --- midway ----------------------------------------------------------------------------------------------------------


async def test_a_stalled_upload_ends_and_leaves_the_old_object(
    proxy: TcpProxy, unlucky: BucketStore, tmp_path: Path
) -> None:
    """It stalls at half of its bytes: unavailable in time, and a reader still gets the whole old object."""
    old = make_file(tmp_path / "old", 3 * MIB)
    await unlucky.put_file("a/b", old)
    holding = asyncio.create_task(at(proxy, HALF_WAY, "to_server", lambda: proxy.hold("to_server")))
    error = await failure(unlucky.put_file("a/b", make_file(tmp_path / "new", LARGE)))
    await holding
    proxy.heal()
    assert error.code == "object_store_unavailable"
    assert await content(unlucky, "a/b") == old.read_bytes()


async def test_an_upload_that_is_cut_once_goes_on(proxy: TcpProxy, patient: BucketStore, tmp_path: Path) -> None:
    """The part is sent again; the object is whole."""
    proxy.cut_after(HALF_WAY, "to_server")
    source = make_file(tmp_path / "source", LARGE)
    assert await patient.put_file("a", source) == LARGE
    assert await content(patient, "a") == source.read_bytes()


async def test_an_upload_that_is_cut_off_for_good_has_no_key(
    proxy: TcpProxy, unlucky: BucketStore, tmp_path: Path
) -> None:
    """The store vanishes midway: unavailable, and nothing is there when it comes back."""

    def vanish() -> None:
        proxy.refuse()
        proxy.reset()

    vanishing = asyncio.create_task(at(proxy, HALF_WAY, "to_server", vanish))
    error = await failure(unlucky.put_file("a", make_file(tmp_path / "source", LARGE)))
    await vanishing
    proxy.heal()
    assert error.code == "object_store_unavailable"
    assert (await unlucky.size("a"), await unlucky.listing("", 10)) == (None, [])


async def test_a_cancelled_upload_is_aborted(
    object_server: ObjectServer, proxy: TcpProxy, unlucky: BucketStore, tmp_path: Path
) -> None:
    """No object has the key, and the parts are dropped from the store."""
    before = object_server.unfinished()
    uploading = asyncio.create_task(unlucky.put_file("a", make_file(tmp_path / "source", LARGE)))
    await at(proxy, HALF_WAY, "to_server", uploading.cancel)
    with pytest.raises(asyncio.CancelledError):
        await uploading
    assert await unlucky.size("a") is None
    assert object_server.unfinished() == before


async def test_a_download_that_is_cut_once_goes_on(proxy: TcpProxy, patient: BucketStore, tmp_path: Path) -> None:
    """The range is requested again; the file is whole."""
    source = make_file(tmp_path / "source", LARGE)
    await patient.put_file("a", source)
    proxy.cut_after(HALF_WAY, "to_client")
    assert await patient.fetch_file("a", tmp_path / "back") == LARGE
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


@pytest.mark.matrix
@pytest.mark.parametrize("fault", ["hold", "vanish"])
async def test_a_download_that_breaks_off_leaves_no_file(
    proxy: TcpProxy, unlucky: BucketStore, patient: BucketStore, tmp_path: Path, fault: str
) -> None:
    """Stalled or cut off for good: unavailable in time, and a partial file is not left as the object."""
    await patient.put_file("a", make_file(tmp_path / "source", LARGE))

    def strike() -> None:
        if fault == "hold":
            proxy.hold("to_client")
        else:
            proxy.refuse()
            proxy.reset()

    striking = asyncio.create_task(at(proxy, HALF_WAY, "to_client", strike))
    error = await failure(unlucky.fetch_file("a", tmp_path / "back"))
    await striking
    assert error.code == "object_store_unavailable"
    assert not (tmp_path / "back").exists()


async def test_a_store_that_is_killed_midway_is_unavailable(tmp_path: Path) -> None:
    """Its process is killed during an upload; the next upload succeeds when it is back."""
    source = make_file(tmp_path / "source", LARGE)
    with started(ObjectServer()) as server:
        async with TcpProxy("127.0.0.1", server.port) as proxy:
            store = bucket(proxy.port)
            killing = asyncio.create_task(at(proxy, HALF_WAY, "to_server", server.kill9))
            error = await failure(store.put_file("a", source))
            await killing
            assert error.code == "object_store_unavailable"
            await asyncio.to_thread(server.start)
            assert await store.size("a") is None
            assert await bucket(proxy.port, BOUNDS).put_file("a", source) == LARGE


async def test_bytes_of_two_objects_are_never_read_as_one(object_store: ObjectStore, tmp_path: Path) -> None:
    """Replaced while it is read: the reader gets all of the old one, or an error to begin again."""
    old, new = make_file(tmp_path / "old", 9 * MIB), make_file(tmp_path / "new", 9 * MIB)
    await object_store.put_file("a", old)
    reader = aiter(object_store.read("a"))
    pieces = [await anext(reader)]
    await object_store.put_file("a", new)
    try:
        pieces += [piece async for piece in reader]
    except Unavailable:
        assert old.read_bytes().startswith(b"".join(pieces))
    else:
        assert b"".join(pieces) == old.read_bytes()


async def test_an_object_that_lost_bytes_on_its_way_is_no_object(tmp_path: Path) -> None:
    """The store takes all and keeps less: the size that is read back shows it, and the object is deleted."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        asked.append(f"{request.method} {request.query_string}")
        if request.method == "HEAD":
            return web.Response(body=b"9 bytes..", headers={"ETag": '"x"', "Last-Modified": LONG_AGO})
        text = "<DeleteResult></DeleteResult>" if request.method == "POST" else ""
        return web.Response(headers={"ETag": '"x"'}, text=text, content_type="application/xml")

    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        error = await failure(bucket(port).put_file("a", make_file(tmp_path / "source", 10)))
    finally:
        await runner.cleanup()
    assert (error.code, "9 bytes of 10" in error.message) == ("object_store_unavailable", True)
    assert asked[:2] == ["PUT ", "HEAD "]
    assert asked[-1].startswith("POST delete")


LONG_AGO = "Thu, 01 Jan 2026 00:00:00 GMT"


# --- processes that are killed, starved or without rights ------------------------------------------------------------


class Child:
    """A process that puts or fetches one file."""

    def __init__(
        self,
        folder: Path,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.log = folder / f"child-{secrets.token_hex(4)}"
        command = [*prefix, sys.executable, "-m", "kit.object_store_process", *map(str, arguments)]
        paths = os.pathsep.join(path for path in sys.path if path)
        self.process = spawn(command, self.log, {"PYTHONPATH": paths, **(environment or {})})

    def kill9(self) -> None:
        """``kill -9`` it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=20)

    def answer(self) -> dict[str, Any]:
        """Return its last line of output."""
        self.process.wait(timeout=90)
        answer: dict[str, Any] = json.loads(self.log.read_text().splitlines()[-1])
        return answer


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A named pipe: a file that arrives as slowly as a test wants."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    yield path
    with suppress(OSError):  # ends a reader that still waits
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def open_pipe(path: Path) -> int:
    """Return the end to write to, once there is a reader."""

    def opened() -> int | None:
        with suppress(OSError):  # no reader yet
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        return None

    end = eventually(opened, 30)
    assert end is not None
    os.set_blocking(end, True)
    return end


def unfinished(folder: Path) -> list[Path]:
    """Return the files that are not complete yet."""
    return list((folder / UPLOADS).iterdir())


async def test_a_process_that_is_killed_midway_leaves_nothing_in_the_folder(tmp_path: Path, pipe: Path) -> None:
    """The old object is whole, nothing else is listed, and the next process deletes the rest."""
    folder = tmp_path / "objects"
    store = open_store(folder.as_uri(), {})
    old = make_file(tmp_path / "old", 3 * MIB)
    await store.put_file("a/b", old)
    child = Child(tmp_path, "put", folder.as_uri(), "a/b", pipe)
    end = await asyncio.to_thread(open_pipe, pipe)
    await asyncio.to_thread(os.write, end, os.urandom(5 * MIB))
    await eventually_async(lambda: any(file.stat().st_size >= 4 * MIB for file in unfinished(folder)), 20)
    child.kill9()
    os.close(end)
    assert await content(store, "a/b") == old.read_bytes()
    assert [found.key for found in await store.listing("", 10)] == ["a/b"]
    assert len(unfinished(folder)) == 1
    open_store(folder.as_uri(), {}).close()
    assert unfinished(folder) == []
    store.close()


async def test_a_file_that_is_being_written_is_not_deleted(tmp_path: Path, pipe: Path) -> None:
    """A process that starts meanwhile leaves it alone; the object becomes whole."""
    folder = tmp_path / "objects"
    child = Child(tmp_path, "put", folder.as_uri(), "a", pipe)
    end = await asyncio.to_thread(open_pipe, pipe)
    await asyncio.to_thread(os.write, end, b"x" * MIB)
    await eventually_async(lambda: folder.exists() and unfinished(folder) != [], 20)
    store = open_store(folder.as_uri(), {})
    assert len(unfinished(folder)) == 1
    assert await store.size("a") is None
    await asyncio.to_thread(os.write, end, b"y" * MIB)
    os.close(end)
    assert (await asyncio.to_thread(child.answer))["done_bytes"] == 2 * MIB
    assert await content(store, "a") == b"x" * MIB + b"y" * MIB
    assert unfinished(folder) == []
    store.close()


async def test_a_process_that_is_killed_midway_leaves_no_key_in_the_bucket(
    object_server: ObjectServer, proxy: TcpProxy, prefix: str, tmp_path: Path
) -> None:
    """Parts that are never completed are no object."""
    proxy_url = f"http://127.0.0.1:{proxy.port}"
    source = make_file(tmp_path / "source", LARGE)
    arguments = ("put", f"s3://{BUCKET}/{prefix}", "a", source)
    child = Child(tmp_path, *arguments, environment={**USER, "AWS_ENDPOINT_URL": proxy_url})
    await at(proxy, HALF_WAY, "to_server", lambda: proxy.hold("to_server"))
    child.kill9()
    proxy.heal()
    store = bucket(object_server.port, BOUNDS, prefix=prefix)
    assert (await store.size("a"), await store.listing("", 10)) == (None, [])
    assert await store.put_file("a", source) == LARGE


@pytest.mark.parametrize("verb", ["put", "fetch"])
async def test_a_full_disk_is_unavailable_and_nothing_remains(tmp_path: Path, verb: str) -> None:
    """A file cannot grow past 4 MiB: for an upload the store fails, for a download this side; neither leaves a part."""
    folder, back = tmp_path / "objects", tmp_path / "back"
    store = open_store(folder.as_uri(), {})
    source = make_file(tmp_path / "source", 10 * MIB)
    await store.put_file("old", source)
    arguments = ("put", folder.as_uri(), "new/a", source) if verb == "put" else ("fetch", folder.as_uri(), "old", back)
    said = await asyncio.to_thread(Child(tmp_path, *arguments, 4 * MIB).answer)
    assert said["code"] == ("object_store_unavailable" if verb == "put" else "no_space")
    assert said["retriable"]
    assert [found.key for found in await store.listing("", 10)] == ["old"]
    assert (unfinished(folder), back.exists()) == ([], False)
    store.close()


def without_rights() -> tuple[str, ...]:
    """Return a command prefix that makes root obey the rights of files; other users need none."""
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root needs setpriv to be refused")
@pytest.mark.parametrize("where", ["at the start", "later"])
async def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path, where: str) -> None:
    """At the start and at an upload; an operator has to act, and the error names the folder."""
    folder = tmp_path / "objects"
    store = open_store(folder.as_uri(), {})
    await store.put_file("a/1", make_file(tmp_path / "source", 5))
    store.close()
    closed = folder if where == "at the start" else folder / "a"
    if where == "at the start":
        (folder / UPLOADS).rmdir()
    closed.chmod(0o555)
    arguments = ("put", folder.as_uri(), "a/2", tmp_path / "source")
    said = await asyncio.to_thread(Child(tmp_path, *arguments, prefix=without_rights()).answer)
    closed.chmod(0o755)
    assert (said["code"], str(folder) in said["message"]) == ("object_store_refused", True), said
    assert not (folder / "a" / "2").exists()


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["file", "s3"])
async def test_memory_is_bounded_whatever_the_size(object_server: ObjectServer, tmp_path: Path, kind: str) -> None:
    """200 MiB are uploaded and downloaded, each in its own process: both need far less memory than the file."""
    url = (tmp_path / "objects").as_uri() if kind == "file" else f"s3://{BUCKET}/{secrets.token_hex(8)}"
    source = make_file(tmp_path / "source", 200 * MIB)
    put = Child(tmp_path, "put", url, "a", source, environment=object_server.environment)
    said = await asyncio.to_thread(put.answer)
    assert said.get("done_bytes") == 200 * MIB, said
    assert said["peak_bytes"] < (20 if kind == "file" else 80) * MIB
    fetch = Child(tmp_path, "fetch", url, "a", tmp_path / "back", environment=object_server.environment)
    said = await asyncio.to_thread(fetch.answer)
    assert said.get("done_bytes") == 200 * MIB, said
    assert said["peak_bytes"] < (20 if kind == "file" else 80) * MIB
    assert await asyncio.to_thread(subprocess.call, ["cmp", str(source), str(tmp_path / "back")]) == 0


# --- the folder itself -----------------------------------------------------------------------------------------------


async def test_a_missing_folder_is_unavailable(tmp_path: Path) -> None:
    """An unmounted disk has lost no object, and no other folder is filled in its place."""
    folder = tmp_path / "objects"
    store = open_store(folder.as_uri(), {})
    await store.put_file("a/1", make_file(tmp_path / "source", 5))
    folder.rename(tmp_path / "elsewhere")
    assert {error.code for error in await failures(store, tmp_path)} == {"object_store_unavailable"}
    assert not folder.exists()
    store.close()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """Waiting would not make it a folder."""
    with pytest.raises(Rejected) as refusal:
        open_store(make_file(tmp_path / "file", 1).as_uri(), {})
    assert refusal.value.code == "object_store_refused"


async def test_a_cancelled_upload_into_the_folder_leaves_nothing(tmp_path: Path, pipe: Path) -> None:
    """Its thread ends at the next piece and deletes what it wrote."""
    folder = tmp_path / "objects"
    store = open_store(folder.as_uri(), {})
    uploading = asyncio.create_task(store.put_file("a", pipe))
    end = await asyncio.to_thread(open_pipe, pipe)
    feeding = asyncio.create_task(asyncio.to_thread(feed, end))
    await eventually_async(lambda: any(file.stat().st_size for file in unfinished(folder)), 20)
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    assert unfinished(folder) == []
    await feeding
    assert await store.listing("", 10) == []
    store.close()


def feed(end: int) -> None:
    """Write until the reader is gone."""
    with suppress(BrokenPipeError):
        while True:
            os.write(end, b"x" * MIB)
    os.close(end)


async def test_a_stalled_disk_is_given_up(tmp_path: Path, pipe: Path) -> None:
    """The first byte of a file never arrives: unavailable, and the store serves other calls."""
    store = FolderStore(parse_place((tmp_path / "objects").as_uri()), stalled_after_s=0.3)
    stuck = asyncio.create_task(failure(store.put_file("a", pipe)))
    assert await store.put_file("b", make_file(tmp_path / "source", 5)) == 5
    error = await stuck
    assert (error.code, "has not moved" in error.message) == ("object_store_unavailable", True)
    os.close(await asyncio.to_thread(open_pipe, pipe))
    store.close()


async def test_work_that_progresses_is_not_given_up() -> None:
    """It takes longer than the bound in all, but never without a sign of progress."""
    threads = Threads(stalled_after_s=0.5)
    turns = threading.Semaphore(0)
    done: list[int] = []

    def work(beat: Callable[[], None]) -> int:
        for turn in range(4):
            turns.acquire(timeout=0.3)  # never released, only time passes
            beat()
            done.append(turn)
        return len(done)

    assert await threads.run(work) == 4
    threads.close()
