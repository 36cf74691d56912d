"""The dashboard beside the API on one address: its files, their headers, and paths that reach nothing."""

import asyncio
import gzip
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from kit.api import Client, RunningApi, running_api
from tickwright.dashboard import Page
from tickwright.dashboard.page import STATIC
from tickwright.process.serving import ApiAndDashboard, is_api
from tickwright.rest.admission import ListenerLimits

# A minimal reverse proxy in front of the API: it removes a path prefix, or does not.
#
# It sends its own name as ``Host`` and the browser's host in ``X-Forwarded-Host``, as many proxies do.

_HOST = re.compile(rb"\r\nhost: *([^\r]*)", re.IGNORECASE)


@asynccontextmanager
async def web_proxy(port: int, prefix: str, *, strips: bool) -> AsyncIterator[int]:
    """Yield the port at which everything below ``prefix`` is passed on to ``port``; other requests are cut."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, rest = head.split(b" ", 2)
            if not path.startswith(prefix.encode()):
                return
            if strips:
                path = path.removeprefix(prefix.encode()) or b"/"
            there = b"\r\nHost: inner.example\r\nX-Forwarded-Host: \\1\r\nConnection: close"
            to_server = await asyncio.open_connection("127.0.0.1", port)
            to_server[1].write(b" ".join((method, path, _HOST.sub(there, rest, count=1))))
            await asyncio.gather(_pass_on(reader, to_server[1]), _pass_on(to_server[0], writer))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(5):
                await server.wait_closed()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
        writer.close()


INDEX = (
    '<!doctype html><base href="%BASE%" /><meta name="csp-nonce" content="%NONCE%" />'
    '<script type="module" src="./assets/main.js"></script>'
)
SCRIPT = "console.log('page');\n" * 200


def built(folder: Path) -> Path:
    """A folder with the files of a build, and one beside it that must never be served."""
    static = folder / "static"
    (static / "assets").mkdir(parents=True)
    (static / "index.html").write_text(INDEX)
    (static / "mark.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (static / "source.sha256").write_text("secret-hash")
    (static / "assets/main.js").write_text(SCRIPT)
    (folder / "secret.txt").write_text("secret-file")
    return static


@asynccontextmanager
async def served(database_url: str, folder: Path, prefix: str = "") -> AsyncIterator[RunningApi]:
    """Run an API with the dashboard beside it."""
    page = Page(prefix, built(folder))
    names = ListenerLimits(hosts=("inner.example",))  # the name by which the proxy calls the server
    async with running_api(database_url, page=page, path_prefix=prefix, listener=names) as api:
        yield api


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[RunningApi]:
    """A running API with the dashboard beside it, at the root."""
    async with served(database_url, tmp_path) as running:
        yield running


async def raw(port: int, target: bytes, *headers: bytes) -> tuple[bytes, bytes]:
    """Return head and body of the answer to a request whose target no client has normalized."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\r\n".join([b"GET " + target + b" HTTP/1.1", b"Host: x", b"Connection: close", *headers, b"", b""]))
    try:
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
        await writer.wait_closed()
    return head, body


@pytest.mark.matrix
@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/42", "/task-types/invoice.js", "/trackers?text=%00", "/V1/jobs"])
async def test_every_address_of_a_view_serves_the_page(api: RunningApi, path: str) -> None:
    """A link to a view serves the page, which opens the view; no key is needed."""
    answer = await api.stranger.get(path)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b'<base href="/" />' in answer.body


async def test_the_page_allows_nothing_from_other_origins(api: RunningApi) -> None:
    """No inline script, no frame, no referrer; inline styles by a nonce that is new in every answer."""
    seen = set()
    for _ in range(3):
        answer = await api.stranger.get("/")
        rules = dict(rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";"))
        found = re.search(rb'name="csp-nonce" content="([A-Za-z0-9_-]{24})"', answer.body)
        assert found
        nonce = found[1].decode()
        seen.add(nonce)
        assert rules["default-src"] == "'none'"
        assert rules["script-src"] == rules["connect-src"] == rules["base-uri"] == "'self'"
        assert rules["style-src"] == f"'self' 'nonce-{nonce}'"
        assert rules["frame-ancestors"] == "'none'"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "camera=()" in answer.headers["permissions-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert "etag" not in answer.headers
        assert b"%" not in answer.body
    assert len(seen) == 3


async def script_of(api: RunningApi) -> str:
    """Return the path of the script that ``index.html`` loads: it has the hash of the build."""
    found = re.search(rb'src="\./(assets/[0-9a-f]{16}/main\.js)"', (await api.stranger.get("/")).body)
    assert found
    return f"/{found[1].decode()}"


async def test_a_hashed_file_is_cached_for_ever_and_others_are_revalidated(api: RunningApi) -> None:
    """The path of a file changes with its content; both kinds have a tag, and 304 says it is unchanged."""
    script = await script_of(api)
    hashed = await api.stranger.get(script)
    assert (await api.stranger.get("/assets/main.js")).headers["cache-control"] == "no-cache"
    assert (await api.stranger.get("/assets/0123456789abcdef/main.js")).status == 404
    assert hashed.headers["content-type"] == "text/javascript; charset=utf-8"
    assert hashed.headers["cache-control"] == "public, max-age=31536000, immutable"
    other = await api.stranger.get("/mark.svg")
    assert (other.headers["content-type"], other.headers["cache-control"]) == ("image/svg+xml", "no-cache")
    for path, answer in ((script, hashed), ("/mark.svg", other)):
        for tags in (answer.headers["etag"], f'"x", W/{answer.headers["etag"]}', "*"):
            same = await api.stranger.get(path, headers={"If-None-Match": tags})
            assert (same.status, same.body, same.headers["etag"]) == (304, b"", answer.headers["etag"])
        assert (await api.stranger.get(path, headers={"If-None-Match": '"x"'})).status == 200


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("offer", "compressed"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.00", False),
        ("br", False),
    ],
)
async def test_files_are_compressed_if_the_browser_accepts_it(api: RunningApi, offer: str, compressed: bool) -> None:
    """They were compressed once, at the start; each form has its own tag."""
    head, body = await raw(api.port, b"/assets/main.js", f"Accept-Encoding: {offer}".encode())
    assert (b"content-encoding: gzip" in head) is compressed
    assert b"vary: accept-encoding" in head
    assert (gzip.decompress(body) if compressed else body) == SCRIPT.encode()
    assert len(body) < len(SCRIPT) / 5 or not compressed


async def test_head_is_answered_as_get_without_its_body(api: RunningApi) -> None:
    """Same headers, the length included; no body follows."""
    for path in ("/", "/assets/main.js", "/assets/gone.js", "/%2e%2e/x"):
        full, bare = await api.stranger.get(path), await api.stranger.send("HEAD", path)
        assert (bare.status, bare.body) == (full.status, b"")
        for name in ("content-type", "content-length", "cache-control"):
            assert bare.headers[name] == full.headers[name]


@pytest.mark.matrix
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_the_page_answers_only_get_and_head(api: RunningApi, method: str) -> None:
    """Other methods are 405 with the allowed ones."""
    answer = await api.stranger.send(method, "/jobs")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


ROUND = [
    b"/../secret.txt",
    b"/..%2fsecret.txt",
    b"/%2e%2e/secret.txt",
    b"/%2e%2e%2fsecret.txt",
    b"/assets/../../secret.txt",
    b"/assets/..%2f..%2fsecret.txt",
    b"/assets/%2e%2e/%2e%2e/secret.txt",
    b"/assets/..\\..\\secret.txt",
    b"/..%5csecret.txt",
    b"/assets/..",
    b"/.",
    b"//secret.txt",
    b"//etc/passwd",
    b"/%2f/etc/passwd",
    b"/assets//main.js",
    b"/%00",
    b"/assets/main.js%00.html",
    b"/x%0d%0aset-cookie:a=b",
    b"/%7f",
]


@pytest.mark.matrix
@pytest.mark.parametrize("target", ROUND)
async def test_no_path_leads_out_of_the_folder(api: RunningApi, target: bytes) -> None:
    """Steps up, empty steps and control characters are 404, in any encoding."""
    head, body = await raw(api.port, target)
    assert head.startswith(b"HTTP/1.1 404"), head
    assert b"secret" not in body
    assert b"set-cookie" not in head


@pytest.mark.matrix
@pytest.mark.parametrize(
    "target", [b"/source.sha256", b"/index.html", b"/%ff%fe", b"/%c0%ae%c0%ae/secret.txt", b"/%252e%252e/x"]
)
async def test_files_that_are_not_for_browsers_are_not_served(api: RunningApi, target: bytes) -> None:
    """Metadata of the build is not served, and an unknown path is the page with an unknown view."""
    head, body = await raw(api.port, target)
    assert head.startswith(b"HTTP/1.1 200"), head
    assert b"<base" in body


async def test_a_missing_script_is_not_answered_with_the_page(api: RunningApi) -> None:
    """A browser that requests a script of another release never gets HTML: 404 says to reload."""
    for path in ("/assets/old.js", "/assets/", "/favicon.ico", "/robots.txt"):
        answer = await api.stranger.get(path)
        assert (answer.status, answer.headers["content-type"]) == (404, "text/plain; charset=utf-8"), path


async def test_the_api_is_beside_the_page_and_needs_a_key(api: RunningApi) -> None:
    """Paths below /v1 are the API's, also without a route; the probes stay open."""
    for path in ("/v1", "/v1/", "/v1/nothing", "/v1/jobs", "/v1/../v1/jobs"):
        assert (await api.stranger.get(path)).status == 401, path
    for path in ("/healthz", "/readyz", "/metrics", "/v1/openapi.json"):
        assert (await api.stranger.get(path)).status == 200, path
    assert (await api.viewer.get("/v1/jobs")).status == 200
    for path in ("/v1x", "/v1:x", "/healthz/", "/metrics/x"):
        assert b"<base" in (await api.stranger.get(path)).body, path


async def test_a_checkout_without_a_built_page_says_how_to_build_it(database_url: str, tmp_path: Path) -> None:
    """The API works without it."""
    async with running_api(database_url, page=Page("", tmp_path / "none")) as api:
        answer = await api.stranger.get("/")
        assert answer.status == 503
        assert b"scripts/page.py build" in answer.body
        assert (await api.viewer.get("/v1/session")).status == 200


@pytest.mark.parametrize("target", [b"/", b"/v1/session"])
async def test_an_endless_cookie_is_cut_off(api: RunningApi, target: bytes) -> None:
    """431 after 32 KiB of head, for the page as for the API."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nCookie: tickwright_session=" + b"x" * 40_000)
    assert b" 431 " in await reader.readline()
    writer.close()


PREFIX = "/ops/tickwright"


@pytest.mark.parametrize("strips", [True, False])
async def test_under_a_prefix_page_api_and_session_work_behind_either_kind_of_proxy(
    database_url: str, tmp_path: Path, strips: bool
) -> None:
    """The base, the cookie's path and ``Location`` name the prefix, whether the proxy takes it off or not."""
    async with (
        served(database_url, tmp_path, PREFIX) as api,
        web_proxy(api.port, PREFIX, strips=strips) as port,
        aiohttp.ClientSession() as session,
    ):
        browser = Client(session, f"http://127.0.0.1:{port}{PREFIX}", None)
        for path in ("", "/", "/jobs/5"):
            assert f'<base href="{PREFIX}/" />'.encode() in (await browser.get(path)).body
        assert (await browser.get("/assets/main.js")).body == SCRIPT.encode()
        origin = {"Origin": f"http://127.0.0.1:{port}"}
        signed = await browser.post("/v1/session", {"key": api.operator.key}, headers=origin)
        assert f"; Path={PREFIX}/; " in signed.headers["set-cookie"]
        cookie = {"Cookie": signed.headers["set-cookie"].partition(";")[0]}
        page = {**cookie, **origin, "X-Tickwright-Csrf": signed.json["csrf"]}
        made = await browser.post("/v1/jobs", {"task_type": "noop"}, headers=page)
        assert (made.status, made.headers["location"]) == (201, f"{PREFIX}/v1/jobs/{made.json['id']}")
        evil = {**page, "Origin": "http://inner.example.evil"}
        (await browser.post("/v1/jobs", {"task_type": "noop"}, headers=evil)).says(403, "cross_site")
        gone = await browser.get("/v1/session", headers={"Cookie": "tickwright_session=x"})
        assert f"; Path={PREFIX}/; " in gone.says(401, "unauthenticated").headers["set-cookie"]


async def test_a_prefix_is_removed_once_and_whole(database_url: str, tmp_path: Path) -> None:
    """Without the prefix everything works as well; a path that only begins like it has no prefix."""
    async with served(database_url, tmp_path, PREFIX) as api:
        assert (await api.viewer.get("/v1/session")).status == 200
        assert (await api.viewer.get(f"{PREFIX}/v1/session")).status == 200
        assert (await api.stranger.get(f"{PREFIX}/healthz")).status == 200
        for path in (f"{PREFIX}x/v1/session", f"{PREFIX}{PREFIX}/v1/session", f"/x{PREFIX}/v1/session"):
            assert b"<base" in (await api.stranger.get(path)).body, path
        head, _ = await raw(api.port, PREFIX.encode() + b"/../v1/session")
        assert head.startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize(
    ("path", "is_the_apis"),
    [("/v1", True), ("/v1/x", True), ("/healthz", True), ("/v1x", False), ("/", False), ("/assets/v1/x", False)],
)
def test_which_paths_are_the_apis(path: str, is_the_apis: bool) -> None:
    """Whole segments of the path are compared."""
    assert is_api(path) is is_the_apis


async def test_other_scopes_than_http_go_to_the_api() -> None:
    """Lifespan and WebSockets."""
    calls = []

    async def api(scope: dict[str, object], _receive: object, _send: object) -> None:
        calls.append(scope["type"])

    front = ApiAndDashboard(api, Page("", STATIC), "/x")  # type: ignore[arg-type]
    for kind in ("lifespan", "websocket"):
        await front({"type": kind}, None, None)  # type: ignore[arg-type]
    assert calls == ["lifespan", "websocket"]
