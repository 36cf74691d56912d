"""Files of reports: signed links, and the bytes behind them."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from kit.report_api import ReportApi, report_api
from kit.reports import ReportWorld
from tickwright.domain.errors import Rejected, Unavailable

DATA = b"id,country\r\n1,NL\r\n2,NL\r\n"


async def test_a_finished_report_is_fetched_by_its_link(desk: ReportApi) -> None:
    """307 for a viewer, to a link that needs no key; the bytes are the record's: size, checksum, name, kind."""
    report_id = await desk.finished(conditions={"country": "NL"})
    seen = await desk.get(f"/{report_id}")
    sent = await desk.api.viewer.get(f"/v1/reports/{report_id}/file")
    assert (sent.status, sent.body) == (307, b"")
    answer = await desk.api.stranger.get(sent.headers["location"])
    assert answer.status == 200
    assert answer.body == DATA
    assert hashlib.sha256(answer.body).hexdigest() == seen["checksum"]
    told = answer.headers
    assert int(told["content-length"]) == seen["bytes"] == len(DATA)
    assert told["content-disposition"] == f'attachment; filename="users-{report_id}.csv"'
    assert (told["content-type"], told["x-content-type-options"]) == ("text/csv; charset=utf-8", "nosniff")
    assert told["etag"] == f'"{seen["checksum"]}"'
    (await desk.api.stranger.get(f"/v1/reports/{report_id}/file")).says(401, "unauthenticated")


async def test_a_parquet_file_says_what_it_is(desk: ReportApi) -> None:
    """By its kind and its name."""
    report_id = await desk.finished(conditions={"country": "NL"}, format="parquet")
    answer = await desk.api.stranger.get((await desk.link(report_id))["url"])
    assert answer.body[:4] == answer.body[-4:] == b"PAR1"
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    assert answer.headers["content-disposition"].endswith('.parquet"')


async def test_a_link_ends_and_opens_one_file_alone(desk: ReportApi) -> None:
    """Fifteen minutes at most, never behind the file's own end; another report, another end, another sign: 403."""
    report_id, other = await desk.given_file(DATA), await desk.given_file(DATA, requester="other")
    link = await desk.link(report_id)
    assert (link["rows"], link["bytes"], link["name"]) == (1, len(DATA), f"users-{report_id}.csv")
    path, _, query = link["url"].partition("?")
    signed = dict(part.split("=") for part in query.split("&"))
    life_s = int(signed["expires"]) - await desk.world.pool.fetchval(
        "SELECT extract(epoch FROM clock_timestamp())::float8"
    )
    assert 890 < life_s <= 901
    strangers = desk.api.stranger
    later, sign = int(signed["expires"]) + 1, signed["signature"]
    forged = [
        f"{path}?expires={later}&signature={sign}",
        f"{path}?expires={signed['expires']}&signature={sign[:-1]}{'0' if sign[-1] != '0' else '1'}",
        f"/v1/report-files/{other}?{query}",
        f"/v1/report-files/999?{query}",
    ]
    for one in forged:
        (await strangers.get(one)).says(403, "invalid_link")
    (await strangers.get(f"{path}?expires={signed['expires']}&signature=abc")).says(422, "invalid_parameter")
    (await strangers.get(path)).says(422, "invalid_parameter")
    assert (await strangers.get(link["url"])).body == DATA
    await desk.world.pool.execute("UPDATE tickwright.report_links SET secret = 'another'")
    (await strangers.get(link["url"])).says(403, "invalid_link")


async def test_a_link_that_has_ended_opens_nothing(desk: ReportApi) -> None:
    """By the database's clock; whoever may look gets a new one."""
    report_id = await desk.given_file(DATA, keep_s=0.2)
    link = await desk.link(report_id)
    await desk.world.pool.execute("SELECT pg_sleep(1.3)")
    (await desk.api.stranger.get(link["url"])).says(403, "link_expired")
    (await desk.api.viewer.get(f"/v1/reports/{report_id}/file")).says(410, "file_expired")
    assert (await desk.get(f"/{report_id}"))["file"] is None


async def test_where_there_is_no_file_one_hears_why(desk: ReportApi) -> None:
    """404, 409 with the status and the reason, 410; never a part of a file."""
    running = await desk.asked(conditions={"country": "BE"})
    said = (await desk.api.viewer.get(f"/v1/reports/{running}/file")).says(409, "report_not_finished")
    assert said.json["state"] == "pending"
    await desk.api.operator.post(f"/v1/reports/{running}/cancel")
    said = (await desk.api.viewer.get(f"/v1/reports/{running}/file")).says(409, "report_not_finished")
    assert said.json["state"] == "cancelled"
    (await desk.api.viewer.get("/v1/reports/999/file")).says(404, "report_not_found")
    removed = await desk.given_file(DATA)
    link = await desk.link(removed)
    await desk.world.pool.execute("UPDATE tickwright.reports SET file_key = NULL WHERE id = $1", removed)
    (await desk.api.viewer.get(f"/v1/reports/{removed}/file")).says(410, "file_expired")
    (await desk.api.stranger.get(link["url"])).says(403, "invalid_link")


async def test_a_file_that_the_store_lost_or_cut_is_never_sent(desk: ReportApi) -> None:
    """502 before the first byte, by either way; one that is whole again is sent again."""
    report_id = await desk.given_file(DATA)
    link, file = await desk.link(report_id), desk.path_of(report_id)
    for damage, code in ((DATA[:-1], "object_damaged"), (DATA + b"3", "object_damaged"), (None, "object_missing")):
        file.write_bytes(damage) if damage is not None else file.unlink()
        (await desk.api.stranger.get(link["url"])).says(502, code)
        (await desk.api.viewer.get(f"/v1/reports/{report_id}/file")).says(502, code)
    file.write_bytes(DATA)
    assert (await desk.api.stranger.get(link["url"])).body == DATA


RANGES: list[tuple[str, int, bytes]] = [
    ("bytes=0-3", 206, DATA[:4]),
    ("bytes=4-", 206, DATA[4:]),
    ("bytes=-6", 206, DATA[-6:]),
    ("bytes=0-9999", 206, DATA),
    ("bytes=-9999", 206, DATA),
    ("bytes=2-2", 206, DATA[2:3]),
    ("bytes=5-2", 200, DATA),
    ("bytes=0-1,4-5", 200, DATA),
    ("lines=0-1", 200, DATA),
    ("bytes=-", 200, DATA),
]


async def test_a_download_goes_on_where_it_broke_off(desk: ReportApi) -> None:
    """One span of ``Range``, if the file is still that one; anything else is the whole file."""
    link = await desk.link(await desk.given_file(DATA))
    mine, other = f'"{link["checksum"]}"', '"other"'
    for wanted, status, part in RANGES:
        answer = await desk.api.stranger.get(link["url"], headers={"Range": wanted})
        assert (answer.status, answer.body) == (status, part), wanted
        if status == 206:
            first = DATA.index(part)
            assert answer.headers["content-range"] == f"bytes {first}-{first + len(part) - 1}/{len(DATA)}"
        same = await desk.api.stranger.get(link["url"], headers={"Range": wanted, "If-Range": mine})
        assert (same.status, same.body) == (status, part), wanted
        changed = await desk.api.stranger.get(link["url"], headers={"Range": wanted, "If-Range": other})
        assert (changed.status, changed.body) == (200, DATA), wanted
    for behind in ("bytes=9999-", "bytes=-0"):
        answer = await desk.api.stranger.get(link["url"], headers={"Range": behind})
        assert answer.says(416, "range_not_satisfiable").headers["content-range"] == f"bytes */{len(DATA)}"


async def test_an_empty_file_is_a_file(desk: ReportApi) -> None:
    """No bytes, whole."""
    link = await desk.link(await desk.given_file(b""))
    answer = await desk.api.stranger.get(link["url"])
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")


class Broken:
    """The world's store, with one thing wrong."""

    def __init__(self, world: ReportWorld, *, after: int | None = None, error: Exception | None = None) -> None:
        self._world, self._after, self._error = world, after, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.objects, name)

    async def size(self, key: str) -> int | None:
        """Say the size, or fail."""
        if self._error is not None and self._after is None:
            raise self._error
        return await self._world.objects.size(key)

    async def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Give pieces of four bytes, so many."""
        data = b"".join([piece async for piece in self._world.objects.read(key, start)])
        for number, first in enumerate(range(0, len(data), 4)):
            if number == self._after:
                if self._error is not None:
                    raise self._error
                return
            yield data[first : first + 4]


AWAY = Unavailable("object_store_unavailable", "it does not answer")
NO = Rejected("object_store_refused", "access denied")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("after", "error", "status", "code"),
    [
        (None, AWAY, 503, "object_store_unavailable"),
        (None, NO, 502, "object_store_refused"),
        (0, AWAY, 503, "object_store_unavailable"),
        (0, NO, 502, "object_store_refused"),
        (0, None, 502, "object_damaged"),
    ],
)
async def test_a_store_that_does_not_give_the_first_byte_is_a_problem(
    alone: ReportWorld, after: int | None, error: Exception | None, status: int, code: str
) -> None:
    """With a code, and no answer that looks like a file."""
    async with report_api(alone) as well:
        link = await well.link(await well.given_file(DATA))
    async with report_api(alone, objects=Broken(alone, after=after, error=error)) as desk:
        (await desk.api.stranger.get(link["url"])).says(status, code)


@pytest.mark.storm
async def test_a_part_is_read_from_its_first_byte_on(alone: ReportWorld) -> None:
    """The last byte of a large file costs no more than the first one."""
    asked: list[int] = []

    class Watched(Broken):
        def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
            asked.append(start)
            return self._world.objects.read(key, start)

    async with report_api(alone, objects=Watched(alone)) as desk:
        link = await desk.link(await desk.given_file(DATA))
        last = len(DATA) - 1
        answer = await desk.api.stranger.get(link["url"], headers={"Range": f"bytes={last}-{last}"})
    assert (answer.status, answer.body, asked) == (206, DATA[-1:], [last])


async def test_a_stranger_with_a_link_sees_no_address_of_the_store(alone: ReportWorld) -> None:
    """A problem says the host of it, as to a viewer."""
    async with report_api(alone) as well:
        link = await well.link(await well.given_file(DATA))
    error = Unavailable("object_store_unavailable", "no answer of https://store.example/hush")
    async with report_api(alone, objects=Broken(alone, error=error)) as desk:
        refused = (await desk.api.stranger.get(link["url"])).says(503, "object_store_unavailable")
    assert refused.json["detail"] == "no answer of https://store.example/…"


@pytest.mark.matrix
@pytest.mark.parametrize("error", [AWAY, None])
async def test_a_file_that_breaks_off_is_no_whole_answer(alone: ReportWorld, error: Exception | None) -> None:
    """The store fails or falls short behind the first byte: the client sees that bytes are missing."""
    async with report_api(alone, objects=Broken(alone, after=2, error=error)) as desk:
        link = await desk.link(await desk.given_file(DATA))
        with pytest.raises(aiohttp.ClientPayloadError):
            await desk.api.stranger.get(link["url"])


async def test_a_file_of_many_pieces_arrives_as_it_is(desk: ReportApi) -> None:
    """Forty megabytes, and a part from their middle."""
    data = b"".join(b"%012d,some text that makes it longer\r\n" % n for n in range(900_000))
    link = await desk.link(await desk.given_file(data))
    answer = await desk.api.stranger.get(link["url"])
    assert hashlib.sha256(answer.body).hexdigest() == link["checksum"]
    middle = await desk.api.stranger.get(link["url"], headers={"Range": "bytes=20000000-21000000"})
    assert middle.body == data[20_000_000:21_000_001]


async def test_links_of_a_store_that_signs_itself_are_its_own(alone: ReportWorld) -> None:
    """Then nothing of the file goes through us."""

    class Signing(Broken):
        async def link(self, key: str, *, lasts: Any) -> str:
            return f"https://bucket.example/{key}?lasts={lasts.total_seconds():.0f}"

    async with report_api(alone, objects=Signing(alone)) as desk:
        report_id = await desk.given_file(DATA, keep_s=60)
        url = (await desk.link(report_id))["url"]
        assert url.startswith(f"https://bucket.example/reports/{report_id}/1-1/users-{report_id}.csv?lasts=")
        assert 50 < int(url.rpartition("=")[2]) <= 60
