"""Files of reports: signed links, and the bytes that they open."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from kit.report_api import ReportApi, report_api
from kit.reports import ReportWorld
from tickwright.domain.errors import Rejected, Unavailable

DATA = b"id,country\r\n1,NL\r\n2,NL\r\n"


async def test_a_finished_report_is_downloaded_by_its_link(reports_api: ReportApi) -> None:
    """307 for a viewer, to a link that needs no key; the bytes are the record's: size, checksum, name, content type."""
    report_id = await reports_api.finished(conditions={"country": "NL"})
    seen = await reports_api.get(f"/{report_id}")
    sent = await reports_api.api.viewer.get(f"/v1/reports/{report_id}/file")
    assert (sent.status, sent.body) == (307, b"")
    answer = await reports_api.api.stranger.get(sent.headers["location"])
    assert answer.status == 200
    assert answer.body == DATA
    assert hashlib.sha256(answer.body).hexdigest() == seen["checksum"]
    headers = answer.headers
    assert int(headers["content-length"]) == seen["bytes"] == len(DATA)
    assert headers["content-disposition"] == f'attachment; filename="users-{report_id}.csv"'
    assert (headers["content-type"], headers["x-content-type-options"]) == ("text/csv; charset=utf-8", "nosniff")
    assert headers["etag"] == f'"{seen["checksum"]}"'
    (await reports_api.api.stranger.get(f"/v1/reports/{report_id}/file")).says(401, "unauthenticated")


async def test_a_parquet_file_has_its_own_content_type(reports_api: ReportApi) -> None:
    """In the response, and with its extension in the name."""
    report_id = await reports_api.finished(conditions={"country": "NL"}, format="parquet")
    answer = await reports_api.api.stranger.get((await reports_api.link(report_id))["url"])
    assert answer.body[:4] == answer.body[-4:] == b"PAR1"
    assert answer.headers["content-type"] == "application/vnd.apache.parquet"
    assert answer.headers["content-disposition"].endswith('.parquet"')


async def test_a_link_expires_and_opens_one_file_only(reports_api: ReportApi) -> None:
    """After 15 minutes at most, and with the file; with another report, expiry or signature it is a 403."""
    report_id, other = await reports_api.given_file(DATA), await reports_api.given_file(DATA, requester="other")
    link = await reports_api.link(report_id)
    assert (link["rows"], link["bytes"], link["name"]) == (1, len(DATA), f"users-{report_id}.csv")
    path, _, query = link["url"].partition("?")
    signed = dict(part.split("=") for part in query.split("&"))
    life_s = int(signed["expires"]) - await reports_api.world.pool.fetchval(
        "SELECT extract(epoch FROM clock_timestamp())::float8"
    )
    assert 890 < life_s <= 901
    anonymous = reports_api.api.stranger
    later, signature = int(signed["expires"]) + 1, signed["signature"]
    forged = [
        f"{path}?expires={later}&signature={signature}",
        f"{path}?expires={signed['expires']}&signature={signature[:-1]}{'0' if signature[-1] != '0' else '1'}",
        f"/v1/report-files/{other}?{query}",
        f"/v1/report-files/999?{query}",
    ]
    for url in forged:
        (await anonymous.get(url)).says(403, "invalid_link")
    (await anonymous.get(f"{path}?expires={signed['expires']}&signature=abc")).says(422, "invalid_parameter")
    (await anonymous.get(path)).says(422, "invalid_parameter")
    assert (await anonymous.get(link["url"])).body == DATA
    await reports_api.world.pool.execute("UPDATE tickwright.report_links SET secret = 'another'")
    (await anonymous.get(link["url"])).says(403, "invalid_link")


async def test_an_expired_link_opens_nothing(reports_api: ReportApi) -> None:
    """By the database's clock; an expired file is a 410."""
    report_id = await reports_api.given_file(DATA, keep_s=0.2)
    link = await reports_api.link(report_id)
    await reports_api.world.pool.execute("SELECT pg_sleep(1.3)")
    (await reports_api.api.stranger.get(link["url"])).says(403, "link_expired")
    (await reports_api.api.viewer.get(f"/v1/reports/{report_id}/file")).says(410, "file_expired")
    assert (await reports_api.get(f"/{report_id}"))["file"] is None


async def test_the_answer_without_a_file_has_the_reason(reports_api: ReportApi) -> None:
    """404, 409 with the status and the reason, 410; never a part of a file."""
    running = await reports_api.asked(conditions={"country": "BE"})
    refused = (await reports_api.api.viewer.get(f"/v1/reports/{running}/file")).says(409, "report_not_finished")
    assert refused.json["state"] == "pending"
    await reports_api.api.operator.post(f"/v1/reports/{running}/cancel")
    refused = (await reports_api.api.viewer.get(f"/v1/reports/{running}/file")).says(409, "report_not_finished")
    assert refused.json["state"] == "cancelled"
    (await reports_api.api.viewer.get("/v1/reports/999/file")).says(404, "report_not_found")
    removed = await reports_api.given_file(DATA)
    link = await reports_api.link(removed)
    await reports_api.world.pool.execute("UPDATE tickwright.reports SET file_key = NULL WHERE id = $1", removed)
    (await reports_api.api.viewer.get(f"/v1/reports/{removed}/file")).says(410, "file_expired")
    (await reports_api.api.stranger.get(link["url"])).says(403, "invalid_link")


async def test_a_file_that_the_store_lost_or_cut_is_never_sent(reports_api: ReportApi) -> None:
    """502 before the first byte, by link and by API; a restored file is sent again."""
    report_id = await reports_api.given_file(DATA)
    link, file = await reports_api.link(report_id), reports_api.path_of(report_id)
    for damage, code in ((DATA[:-1], "object_damaged"), (DATA + b"3", "object_damaged"), (None, "object_missing")):
        file.write_bytes(damage) if damage is not None else file.unlink()
        (await reports_api.api.stranger.get(link["url"])).says(502, code)
        (await reports_api.api.viewer.get(f"/v1/reports/{report_id}/file")).says(502, code)
    file.write_bytes(DATA)
    assert (await reports_api.api.stranger.get(link["url"])).body == DATA


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


async def test_an_interrupted_download_resumes_with_a_range(reports_api: ReportApi) -> None:
    """One range, if the file is still the same; any other request gets the whole file."""
    link = await reports_api.link(await reports_api.given_file(DATA))
    mine, other = f'"{link["checksum"]}"', '"other"'
    for wanted, status, part in RANGES:
        answer = await reports_api.api.stranger.get(link["url"], headers={"Range": wanted})
        assert (answer.status, answer.body) == (status, part), wanted
        if status == 206:
            first = DATA.index(part)
            assert answer.headers["content-range"] == f"bytes {first}-{first + len(part) - 1}/{len(DATA)}"
        same = await reports_api.api.stranger.get(link["url"], headers={"Range": wanted, "If-Range": mine})
        assert (same.status, same.body) == (status, part), wanted
        changed = await reports_api.api.stranger.get(link["url"], headers={"Range": wanted, "If-Range": other})
        assert (changed.status, changed.body) == (200, DATA), wanted
    for beyond in ("bytes=9999-", "bytes=-0"):
        answer = await reports_api.api.stranger.get(link["url"], headers={"Range": beyond})
        assert answer.says(416, "range_not_satisfiable").headers["content-range"] == f"bytes */{len(DATA)}"


async def test_an_empty_file_is_sent(reports_api: ReportApi) -> None:
    """200 without bytes."""
    link = await reports_api.link(await reports_api.given_file(b""))
    answer = await reports_api.api.stranger.get(link["url"])
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")


class FaultyStore:
    """The world's object store, with one fault."""

    def __init__(self, world: ReportWorld, *, after: int | None = None, error: Exception | None = None) -> None:
        self._world, self._after, self._error = world, after, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.objects, name)

    async def size(self, key: str) -> int | None:
        """Return the size, or raise."""
        if self._error is not None and self._after is None:
            raise self._error
        return await self._world.objects.size(key)

    async def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
        """Yield pieces of four bytes, ``after`` of them at most."""
        data = b"".join([piece async for piece in self._world.objects.read(key, start)])
        for number, first in enumerate(range(0, len(data), 4)):
            if number == self._after:
                if self._error is not None:
                    raise self._error
                return
            yield data[first : first + 4]


UNAVAILABLE = Unavailable("object_store_unavailable", "it does not answer")
REFUSED = Rejected("object_store_refused", "access denied")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("after", "error", "status", "code"),
    [
        (None, UNAVAILABLE, 503, "object_store_unavailable"),
        (None, REFUSED, 502, "object_store_refused"),
        (0, UNAVAILABLE, 503, "object_store_unavailable"),
        (0, REFUSED, 502, "object_store_refused"),
        (0, None, 502, "object_damaged"),
    ],
)
async def test_a_store_that_fails_before_the_first_byte_is_an_error(
    alone: ReportWorld, after: int | None, error: Exception | None, status: int, code: str
) -> None:
    """With a code, and not an answer that looks like a file."""
    async with report_api(alone) as healthy_api:
        link = await healthy_api.link(await healthy_api.given_file(DATA))
    async with report_api(alone, objects=FaultyStore(alone, after=after, error=error)) as reports_api:
        (await reports_api.api.stranger.get(link["url"])).says(status, code)


@pytest.mark.storm
async def test_a_range_of_a_file_is_read_from_its_first_byte_on(alone: ReportWorld) -> None:
    """The last byte of a large file costs no more than the first one."""
    asked: list[int] = []

    class Watched(FaultyStore):
        def read(self, key: str, start: int = 0) -> AsyncIterator[bytes]:
            asked.append(start)
            return self._world.objects.read(key, start)

    async with report_api(alone, objects=Watched(alone)) as reports_api:
        link = await reports_api.link(await reports_api.given_file(DATA))
        last = len(DATA) - 1
        answer = await reports_api.api.stranger.get(link["url"], headers={"Range": f"bytes={last}-{last}"})
    assert (answer.status, answer.body, asked) == (206, DATA[-1:], [last])


async def test_a_client_with_a_link_sees_no_address_in_the_store(alone: ReportWorld) -> None:
    """An error names its host only, as for a viewer."""
    async with report_api(alone) as healthy_api:
        link = await healthy_api.link(await healthy_api.given_file(DATA))
    error = Unavailable("object_store_unavailable", "no answer of https://store.example/hush")
    async with report_api(alone, objects=FaultyStore(alone, error=error)) as reports_api:
        refused = (await reports_api.api.stranger.get(link["url"])).says(503, "object_store_unavailable")
    assert refused.json["detail"] == "no answer of https://store.example/…"


@pytest.mark.matrix
@pytest.mark.parametrize("error", [UNAVAILABLE, None])
async def test_a_download_that_breaks_off_is_an_incomplete_answer(alone: ReportWorld, error: Exception | None) -> None:
    """The store fails or ends after the first byte: the client sees that bytes are missing."""
    async with report_api(alone, objects=FaultyStore(alone, after=2, error=error)) as reports_api:
        link = await reports_api.link(await reports_api.given_file(DATA))
        with pytest.raises(aiohttp.ClientPayloadError):
            await reports_api.api.stranger.get(link["url"])


async def test_a_file_of_many_pieces_arrives_unchanged(reports_api: ReportApi) -> None:
    """Forty megabytes, and a range in their middle."""
    data = b"".join(b"%012d,some text that makes it longer\r\n" % n for n in range(900_000))
    link = await reports_api.link(await reports_api.given_file(data))
    answer = await reports_api.api.stranger.get(link["url"])
    assert hashlib.sha256(answer.body).hexdigest() == link["checksum"]
    middle = await reports_api.api.stranger.get(link["url"], headers={"Range": "bytes=20000000-21000000"})
    assert middle.body == data[20_000_000:21_000_001]


async def test_a_store_that_signs_links_serves_its_own_links(alone: ReportWorld) -> None:
    """Then no bytes of the file pass through the API."""

    class Signing(FaultyStore):
        async def link(self, key: str, *, lasts: Any) -> str:
            return f"https://bucket.example/{key}?lasts={lasts.total_seconds():.0f}"

    async with report_api(alone, objects=Signing(alone)) as reports_api:
        report_id = await reports_api.given_file(DATA, keep_s=60)
        url = (await reports_api.link(report_id))["url"]
        assert url.startswith(f"https://bucket.example/reports/{report_id}/1-1/users-{report_id}.csv?lasts=")
        assert 50 < int(url.rpartition("=")[2]) <= 60
