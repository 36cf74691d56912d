"""The promises of every object store, tested on a folder, on S3 and on a store of Google's kind."""

import asyncio
import hashlib
import os
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from kit.object_store import BUCKET, GcsServer
from tickwright.domain.errors import InvariantBroken, Rejected
from tickwright.ports.objects import ObjectStore, StoredObject
from tickwright.process.settings import load_settings
from tickwright.transports.objectstore.locations import parse_place
from tickwright.transports.objectstore.plugin import LazyObjects, objects_url, open_store

MIB = 1024 * 1024
PART = 8 * MIB
SIZES = [0, 1, MIB, MIB + 1, PART - 1, PART, PART + 1, 20 * MIB + 17]
STRANGE_NAMES = [
    "ü ber.csv",
    "x%20y.csv",
    "x#1.csv",
    "~q*?.csv",
    "a&amp;\"'<>.csv",
    "{x}[y]^|`\\.csv",
    "日本.csv",
    "-",
    "...",
]
BAD_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    "../a",
    "a/../b",
    "a/./b",
    "..",
    "a\nb",
    "a\0b",
    "a\x7fb",
    ".uploads/a",
    "x" * 201,
    "a/" * 500,
]
BAD_URLS = [
    "",
    "reports",
    "/var/reports",
    "ftp://host/x",
    "http://host/bucket",
    "memory:///",
    "az://container/x",
    "s3://",
    "s3://Bucket_With_Capitals!/x",
    "s3://user:hush@bucket/x",
    "s3://bucket/x?key=hush",
    "s3://bucket/x#hush",
    "s3://bucket/../x",
    "gs:///x",
    "file://",
    "file:///",
    "file://host/x",
    "file:///x%00hush",
    "file:///%ffhush",
]


def make_file(path: Path, size: int) -> Path:
    """Write ``size`` bytes without repetition nearby."""
    path.write_bytes(os.urandom(size))
    return path


async def content(store: ObjectStore, key: str) -> bytes:
    """Return an object, read piece by piece."""
    pieces = [piece async for piece in store.read(key)]
    assert all(0 < len(piece) <= MIB for piece in pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("size", SIZES)
async def test_an_object_comes_back_as_it_was_put(object_store: ObjectStore, tmp_path: Path, size: int) -> None:
    """Every byte, by both ways of reading; and all three calls return the size."""
    source = make_file(tmp_path / "source", size)
    assert await object_store.put_file("reports/17/1-3/users.csv", source) == size
    assert await object_store.size("reports/17/1-3/users.csv") == size
    assert await object_store.fetch_file("reports/17/1-3/users.csv", tmp_path / "back") == size
    assert (tmp_path / "back").read_bytes() == source.read_bytes()
    assert (
        hashlib.sha256(await content(object_store, "reports/17/1-3/users.csv")).digest()
        == hashlib.sha256(source.read_bytes()).digest()
    )


async def test_an_object_is_read_from_a_given_byte(object_store: ObjectStore, tmp_path: Path) -> None:
    """Bytes before it are not read, and there is nothing after the end."""
    size = PART + MIB + 3
    data = make_file(tmp_path / "source", size).read_bytes()
    await object_store.put_file("one", tmp_path / "source")
    for start in (0, 1, MIB, PART - 1, PART, size - 1, size, size + 1):
        pieces = [piece async for piece in object_store.read("one", start)]
        assert b"".join(pieces) == data[start:]
        assert len(pieces) <= (size - min(start, size)) // MIB + 2


async def test_an_object_is_replaced_as_a_whole(object_store: ObjectStore, tmp_path: Path) -> None:
    """A longer one by a shorter one: nothing of the old one remains."""
    for size in (PART + 5, 7, 0, PART + 1):
        source = make_file(tmp_path / "source", size)
        assert await object_store.put_file("one", source) == size
        assert await content(object_store, "one") == source.read_bytes()


async def test_an_absent_object_is_missing(object_store: ObjectStore, tmp_path: Path) -> None:
    """``size`` returns ``None``; reading raises ``object_missing`` and leaves no file."""
    await object_store.put_file("a/b", make_file(tmp_path / "source", 3))
    for key in ("nothing", "a", "a/b/c", "a/bc"):
        assert await object_store.size(key) is None
        with pytest.raises(Rejected) as fetched:
            await object_store.fetch_file(key, tmp_path / "back")
        with pytest.raises(Rejected) as read:
            await content(object_store, key)
        assert (fetched.value.code, read.value.code) == ("object_missing", "object_missing")
        assert object_store.address(key) in fetched.value.message
        assert not (tmp_path / "back").exists()


async def test_deleted_objects_are_gone(object_store: ObjectStore, tmp_path: Path) -> None:
    """All named ones and no others; a missing object is no error, and neither is an empty list."""
    source = make_file(tmp_path / "source", 3)
    for key in ("a/1", "a/2", "a/b/3", "c"):
        await object_store.put_file(key, source)
    await object_store.delete([])
    await object_store.delete(["a/1", "nothing", "a/b/3", "a/b", "a/1/x"])
    await object_store.delete(["a/1"])
    assert sorted(await object_store.listing("", 10)) == [StoredObject("a/2", 3), StoredObject("c", 3)]


async def test_a_listing_has_the_objects_below_its_prefix(object_store: ObjectStore, tmp_path: Path) -> None:
    """Below means after a slash; a limit holds."""
    source = make_file(tmp_path / "source", 3)
    for key in ("r/1/a", "r/1/b/c", "r/10/a", "r/1", "s"):
        if key != "r/1" or "file" not in object_store.address(""):  # a folder cannot be a file as well
            await object_store.put_file(key, source)
    assert sorted(await object_store.listing("r/1", 10)) == [StoredObject("r/1/a", 3), StoredObject("r/1/b/c", 3)]
    assert await object_store.listing("r/1/", 10) == await object_store.listing("r/1", 10)
    assert [found.key for found in await object_store.listing("r/10", 10)] == ["r/10/a"]
    assert len(await object_store.listing("r", 2)) == 2
    assert await object_store.listing("nothing", 10) == []
    assert await object_store.listing("r", 0) == []


async def test_names_are_kept_as_they_are(object_store: ObjectStore, tmp_path: Path) -> None:
    """Whatever the name of a report: the key that is listed is the key that was put, and can be read by it."""
    for number, name in enumerate(STRANGE_NAMES):
        source = make_file(tmp_path / "source", number + 1)
        await object_store.put_file(f"reports/{name}", source)
        assert await content(object_store, f"reports/{name}") == source.read_bytes()
    listed = await object_store.listing("reports", 100)
    assert sorted(listed) == sorted(
        StoredObject(f"reports/{name}", number + 1) for number, name in enumerate(STRANGE_NAMES)
    )


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_a_key_that_could_leave_the_store_is_refused(object_store: ObjectStore, tmp_path: Path, key: str) -> None:
    """By every method, before any effect: keys are ours, so it is a defect."""
    source = make_file(tmp_path / "source", 1)
    calls = [
        object_store.put_file(key, source),
        object_store.fetch_file(key, tmp_path / "back"),
        content(object_store, key),
        object_store.size(key),
        object_store.delete(["sound", key]),
        object_store.link(key, lasts=timedelta(hours=1)),
    ]
    for call in calls:
        with pytest.raises(InvariantBroken, match="the key"):
            await call
    assert not (tmp_path / "back").exists()


async def test_a_link_needs_no_credentials_and_saves_under_the_objects_name(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    """A bucket's link serves an attachment; a folder has no links."""
    source = make_file(tmp_path / "source", PART + 1)
    await object_store.put_file("reports/ü 1.csv", source)
    link = await object_store.link("reports/ü 1.csv", lasts=timedelta(minutes=5))
    if urlsplit(object_store.address("")).scheme == "file":
        assert link is None
        return
    assert link is not None
    async with aiohttp.ClientSession() as session, session.get(link) as answer:
        assert await answer.read() == source.read_bytes()
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
        assert (
            answer.headers["Content-Disposition"] == "attachment; filename=\"_ 1.csv\"; filename*=UTF-8''%C3%BC%201.csv"
        )
    for lasts in (timedelta(), timedelta(days=7, seconds=1)):
        with pytest.raises(InvariantBroken):
            await object_store.link("a", lasts=lasts)


async def test_a_key_of_another_account_is_refused(gcs_server: GcsServer, tmp_path: Path) -> None:
    """Requests and links are signed by the account's key, so another key is refused."""
    stranger = {**GcsServer().environment, "STORAGE_EMULATOR_HOST": gcs_server.url}
    store = open_store(f"gs://{BUCKET}/other", stranger)
    with pytest.raises(Rejected) as refused:
        await store.put_file("a", make_file(tmp_path / "source", 1))
    assert refused.value.code == "object_store_refused"
    link = await store.link("a", lasts=timedelta(minutes=5))
    assert link is not None
    async with aiohttp.ClientSession() as session, session.get(link) as answer:
        assert answer.status == 403


async def test_many_calls_at_once_do_not_disturb_each_other(object_store: ObjectStore, tmp_path: Path) -> None:
    """Twenty files are uploaded, downloaded and deleted at the same time."""

    async def one(number: int) -> None:
        source = make_file(tmp_path / f"source{number}", 100_000 + number)
        await object_store.put_file(f"many/{number}/x", source)
        assert await content(object_store, f"many/{number}/x") == source.read_bytes()
        await object_store.delete([f"many/{number}/x"])

    await asyncio.gather(*(one(number) for number in range(20)))
    assert await object_store.listing("many", 100) == []


async def test_a_missing_local_file_is_a_defect(object_store: ObjectStore, tmp_path: Path) -> None:
    """It is neither a fault of the store nor worth a retry; the same where a file cannot be written."""
    with pytest.raises(InvariantBroken, match="No such file"):
        await object_store.put_file("a", tmp_path / "nothing")
    await object_store.put_file("a", make_file(tmp_path / "source", 1))
    with pytest.raises(InvariantBroken, match="No such file"):
        await object_store.fetch_file("a", tmp_path / "nowhere" / "back")


@pytest.mark.matrix
async def test_the_event_loop_goes_on_during_a_large_transfer(object_store: ObjectStore, tmp_path: Path) -> None:
    """64 MiB up and down: the loop runs all the while. A transfer in the loop itself would block it."""
    source = make_file(tmp_path / "source", 64 * MIB)
    loop = asyncio.get_running_loop()
    over, turns = asyncio.Event(), 0

    async def watch() -> None:
        nonlocal turns
        while not over.is_set():
            await asyncio.sleep(0.001)
            turns += 1

    watching = asyncio.create_task(watch())
    before = loop.time()
    await object_store.put_file("large", source)
    await object_store.fetch_file("large", tmp_path / "back")
    took = loop.time() - before
    over.set()
    await watching
    assert turns > 3 + took / 0.02, f"{turns} turns in {took} s; about one a millisecond on a quiet machine"


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_is_no_object_store_is_refused(url: str) -> None:
    """At once, with the possible forms, and without repeating what may be secret; settings refuse it, too."""
    with pytest.raises(Rejected) as refusal:
        open_store(url, {})
    assert refusal.value.code == "invalid_object_store"
    assert "s3://BUCKET/PREFIX" in refusal.value.message
    assert "hush" not in refusal.value.message
    if url:
        with pytest.raises(Rejected, match="TICKWRIGHT_OBJECT_STORE: write file") as invalid:
            load_settings(object_store=url)
        assert "hush" not in invalid.value.message


@pytest.mark.parametrize("endpoint", ["http://user:hush@host", "localhost:9000", "ftp://hush", "https://"])
def test_an_unusable_endpoint_is_refused(endpoint: str) -> None:
    """A password in it would be logged."""
    with pytest.raises(Rejected, match="AWS_ENDPOINT_URL") as refusal:
        open_store("s3://bucket/x", {"AWS_ENDPOINT_URL": endpoint})
    assert refusal.value.code == "invalid_object_store"
    assert "hush" not in refusal.value.message


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("file:///var/reports/", "file:///var/reports/a/b"),
        ("file:///var/my%20reports", "file:///var/my reports/a/b"),
        ("s3://bucket", "s3://bucket/a/b"),
        ("s3://bucket/", "s3://bucket/a/b"),
        ("s3://bucket/x/y/", "s3://bucket/x/y/a/b"),
        ("gs://bucket/x", "gs://bucket/x/a/b"),
    ],
)
def test_an_address_is_the_setting_with_the_key(url: str, address: str) -> None:
    """It shows where an object is."""
    assert parse_place(url).address("a/b") == address


async def test_without_a_setting_files_are_kept_in_the_home(tmp_path: Path) -> None:
    """In the folder ``objects``, created when needed with rights for its owner only; also in a home of any name."""
    home = tmp_path / "a home#1 %20ü"
    settings = load_settings(home=home)
    store = LazyObjects(objects_url(settings), {})
    await store.put_file("r/1", make_file(tmp_path / "source", 5))
    assert await store.size("r/1") == 5
    await store.aclose()
    assert (home / "objects" / "r" / "1").stat().st_mode & 0o777 == 0o600
    assert (home / "objects" / "r").stat().st_mode & 0o777 == 0o700
    assert objects_url(settings).endswith("/objects")


async def test_a_store_that_opens_with_its_first_call_reads_from_a_byte_on_too(tmp_path: Path) -> None:
    """As in processes that serve files."""
    store = LazyObjects(objects_url(load_settings(home=tmp_path / "home")), {})
    data = make_file(tmp_path / "source", 5).read_bytes()
    await store.put_file("r", tmp_path / "source")
    assert b"".join([piece async for piece in store.read("r", 3)]) == data[3:]


async def test_files_are_kept_where_the_setting_says(tmp_path: Path) -> None:
    """In the folder of the setting, and none in the home."""
    settings = load_settings(home=tmp_path / "home", object_store=(tmp_path / "there").as_uri())
    store = LazyObjects(objects_url(settings), {})
    await store.put_file("r", make_file(tmp_path / "source", 5))
    await store.aclose()
    assert (tmp_path / "there" / "r").stat().st_size == 5
    assert not (tmp_path / "home").exists()
