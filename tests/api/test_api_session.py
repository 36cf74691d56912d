"""Signing in with a browser: the cookie, what it allows, and what a page of another site cannot do with it."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from kit.api import Answer, Client, RunningApi, running_api
from kit.streams import open_stream
from kit.waiting import eventually_async
from tickwright.api.auth import Authenticator
from tickwright.api.context import ApiLimits
from tickwright.api.cookies import MAX_AGE_S, Site, csrf_token, over_tls, session_tokens, site_of
from tickwright.api.sessions import FAILURES_BURST, OPENED_BURST
from tickwright.domain.errors import Rejected

GOOD = "tw_" + "A" * 43
TOKEN = "tws_" + "A" * 43
OTHERS = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}
OURS = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API."""
    async with running_api(database_url) as running:
        yield running


class Browser:
    """Keeps the cookie and the token, as the dashboard does; each header can be replaced."""

    def __init__(self, client: Client, cookie: str, csrf: str) -> None:
        self._client, self.cookie, self.csrf = client, cookie, csrf

    async def send(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send as the dashboard would."""
        defaults = {"Cookie": self.cookie, "Sec-Fetch-Site": "same-origin", "X-Tickwright-Csrf": self.csrf}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        whole = {name: value for name, value in {**defaults, **named}.items() if value}
        return await self._client.send(method, path, body, headers=whole)


async def signed_in(api: RunningApi, client: Client | None = None) -> Browser:
    """Return a browser that signed in with the key of ``client``, an admin's by default."""
    key = (client or api.admin).key
    answer = await api.stranger.post("/v1/session", {"key": key}, headers=OURS)
    assert answer.status == 200, answer.body
    return Browser(api.stranger, answer.headers["set-cookie"].partition(";")[0], answer.json["csrf"])


async def test_a_sign_in_sets_a_cookie_that_no_script_can_read(api: RunningApi) -> None:
    """HttpOnly, SameSite=Strict, bounded, for the API's path; the answer has the role, and the token for changes."""
    answer = await api.stranger.post("/v1/session", {"key": api.operator.key}, headers=OURS)
    pieces = answer.headers["set-cookie"].split("; ")
    assert re.fullmatch("tickwright_session=tws_[A-Za-z0-9_-]{43}", pieces[0])
    assert set(pieces[1:]) == {"Path=/", f"Max-Age={MAX_AGE_S}", "HttpOnly", "SameSite=Strict"}
    assert MAX_AGE_S <= 12 * 3600
    answered = answer.json
    assert (answered["name"], answered["role"], answered["shows_payloads"]) == ("operator", "operator", True)
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", answered["csrf"])
    assert api.operator.key is not None
    assert api.operator.key[3:] not in answer.body.decode()


@pytest.mark.parametrize(
    "header", [{"X-Forwarded-Proto": "https"}, {"Origin": "https://HOST", "X-Forwarded-Host": "HOST"}]
)
async def test_over_tls_the_cookie_is_secure(api: RunningApi, header: dict[str, str]) -> None:
    """A cookie that was set over TLS is never sent without it, and no subdomain can set it."""
    answer = await api.stranger.post("/v1/session", {"key": api.viewer.key}, headers=header)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-tickwright_session=tws_")
    assert cookie.endswith("; Secure")
    planted = f"tickwright_session={TOKEN}; {cookie.partition(';')[0]}; tickwright_session={TOKEN}"
    assert (await api.stranger.get("/v1/session", headers={"Cookie": planted})).json["role"] == "viewer"


async def test_the_cookie_allows_reads_and_with_its_token_changes(api: RunningApi) -> None:
    """The dashboard may do what a bearer key may, the fast path included."""
    browser = await signed_in(api)
    assert (await browser.send("GET", "/v1/session", X_Tickwright_Csrf="", Sec_Fetch_Site="")).json == {
        "name": "admin",
        "role": "admin",
        "key_id": (await api.admin.get("/v1/session")).json["key_id"],
        "version": "0.0.0",
        "csrf": browser.csrf,
        "shows_payloads": True,
    }
    assert (await browser.send("POST", "/v1/jobs", {"task_type": "noop"})).status == 201
    assert (await browser.send("POST", "/v1/task-types/noop/pause")).status == 200
    assert (await api.admin.get("/v1/session")).json["csrf"] is None


CHANGES = [("POST", "/v1/jobs"), ("POST", "/v1/task-types/noop/pause"), ("DELETE", "/v1/session")]


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"X_Tickwright_Csrf": ""}, "csrf_token_missing"),
        ({"X_Tickwright_Csrf": "x" * 43}, "csrf_token_wrong"),
        ({"X_Tickwright_Csrf": csrf_token(TOKEN)}, "csrf_token_wrong"),
        ({"Sec_Fetch_Site": "cross-site"}, "cross_site"),
        ({"Sec_Fetch_Site": "same-site"}, "cross_site"),
        ({"Sec_Fetch_Site": "cross-site", "Origin": "http://127.0.0.1"}, "cross_site"),
        ({"Sec_Fetch_Site": ""}, "cross_site"),
        ({"Sec_Fetch_Site": "", "Origin": "null"}, "cross_site"),
        ({"Sec_Fetch_Site": "", "Origin": "https://evil.example"}, "cross_site"),
        ({"Sec_Fetch_Site": "", "Origin": "http://127.0.0.1:1"}, "cross_site"),
    ],
)
async def test_a_change_from_another_site_is_refused(
    api: RunningApi, method: str, path: str, headers: dict[str, str], code: str
) -> None:
    """The cookie alone changes nothing: 403, and no row is written."""
    browser = await signed_in(api)
    before = await api.pool.fetchval("SELECT max(id) FROM tickwright.audit")
    body = {"task_type": "noop"} if path == "/v1/jobs" else None
    (await browser.send(method, path, body, **headers)).says(403, code)
    assert await api.pool.fetchval("SELECT count(*) FROM tickwright.scheduled_tasks") == 0
    assert await api.pool.fetchval("SELECT max(id) FROM tickwright.audit") == before


async def test_without_fetch_metadata_the_origin_decides(api: RunningApi) -> None:
    """Plain HTTP in a network has no Sec-Fetch-Site: the Origin must be this host, or that of the proxy."""
    browser = await signed_in(api)
    for headers in (
        {"Origin": f"http://127.0.0.1:{api.port}"},
        {"Origin": "https://ticks.example", "X_Forwarded_Host": "ticks.example"},
        {"Origin": "https://ticks.example", "X_Forwarded_Host": "Ticks.example:443"},
    ):
        answer = await browser.send("POST", "/v1/task-types/noop/pause", None, Sec_Fetch_Site="", **headers)
        assert answer.status == 200, (headers, answer.body)


async def test_a_bearer_key_needs_neither_token_nor_site_and_outranks_the_cookie(api: RunningApi) -> None:
    """No browser sends Authorization by itself; with it the cookie does not count, not even a valid one."""
    assert (await api.operator.post("/v1/jobs", {"task_type": "noop"}, headers=OTHERS)).status == 201
    browser = await signed_in(api)
    (await browser.send("GET", "/v1/session", Authorization="Bearer tw_wrong")).says(401, "unauthenticated")
    answered = await browser.send("GET", "/v1/session", Authorization=f"Bearer {api.viewer.key}")
    assert (answered.json["role"], answered.json["csrf"]) == ("viewer", None)


@pytest.mark.parametrize("header", [OTHERS, {"Sec-Fetch-Site": "same-site"}, {"Origin": "null"}])
async def test_another_site_cannot_sign_a_browser_in(api: RunningApi, header: dict[str, str]) -> None:
    """A page of another site cannot sign its visitor in with its own key."""
    answer = await api.stranger.post("/v1/session", {"key": api.viewer.key}, headers=header)
    assert "set-cookie" not in answer.says(403, "cross_site").headers


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_no_form_signs_in_or_changes_anything(api: RunningApi, content_type: str) -> None:
    """A form of another site can send no JSON content type, even from a browser without Sec-Fetch-Site."""
    body = b'{"key": "' + (api.viewer.key or "").encode() + b'"}'
    answer = await api.stranger.post("/v1/session", body, headers={"Content-Type": content_type})
    assert "set-cookie" not in answer.says(415, "unsupported_media_type").headers


@pytest.mark.parametrize(
    "cookie",
    [
        "tickwright_session={token}; tickwright_session={token}",
        "tickwright_session={other}; tickwright_session={token}",
        "tickwright_session={token}; tickwright_session=",
        'tickwright_session="{token}"',
        "tickwright_session={token}x",
        "tickwright_session=",
        "tickwright_session",
        "tickwright_session=tws_" + "é" * 43,
        "tickwright_session={token},",
        "tickwright_session={key}",
        "__Host-tickwright_session={other}; tickwright_session={token}",
    ],
)
async def test_an_ambiguous_cookie_is_refused_and_cleared(api: RunningApi, cookie: str) -> None:
    """Two of the name, a malformed one, or a key itself: 401, and the answer deletes the cookie."""
    token = (await signed_in(api)).cookie.partition("=")[2]
    shown = cookie.format(key=api.admin.key, token=token, other=TOKEN)
    answer = await api.stranger.get("/v1/session", headers={"Cookie": shown})
    cleared = answer.says(401, "unauthenticated").headers["set-cookie"]
    assert cleared.startswith("tickwright_session=; Path=/; Max-Age=0; HttpOnly")


async def test_a_cookie_with_a_similar_name_is_ignored(api: RunningApi) -> None:
    """Names are compared whole and with their case; cookies of other applications are not touched."""
    token = (await signed_in(api)).cookie.partition("=")[2]
    for name in ("Tickwright_session", "xtickwright_session", "tickwright_session2", "__host-tickwright_session"):
        answer = await api.stranger.get("/v1/session", headers={"Cookie": f"{name}={token}"})
        assert "set-cookie" not in answer.says(401, "unauthenticated").headers
    found = session_tokens([(b"cookie", f"a=b;{'x' * 8000}; tickwright_session = {TOKEN}".encode()), (b"cookie", b"")])
    assert found == [TOKEN]


async def test_a_revoked_key_signs_its_browser_out(api: RunningApi) -> None:
    """Within a second: a session lasts no longer than its key."""
    made = (await api.admin.post("/v1/keys", {"name": "leaving", "role": "viewer"})).json
    browser = await signed_in(api, api.stranger.with_key(made["key"]))
    assert (await browser.send("GET", "/v1/session")).status == 200
    await api.admin.post(f"/v1/keys/{made['details']['id']}/revoke")

    async def signed_out() -> bool:
        answer = await browser.send("GET", "/v1/session")
        return answer.status == 401 and "Max-Age=0" in answer.headers["set-cookie"]

    await eventually_async(signed_out)


async def ends(browser: Browser) -> None:
    """Wait until a browser's cookie is refused."""

    async def refused() -> bool:
        return (await browser.send("GET", "/v1/session")).status == 401

    await eventually_async(refused)


async def test_signing_out_ends_the_session_everywhere(database_url: str) -> None:
    """A copy of the cookie is refused at every replica within a second; the key stays valid."""
    async with running_api(database_url) as api, running_api(database_url) as other:
        browser = await signed_in(api)
        copy = Browser(other.stranger, browser.cookie, browser.csrf)
        assert (await copy.send("GET", "/v1/session")).status == 200
        answer = await browser.send("DELETE", "/v1/session")
        assert answer.status == 204
        assert "Max-Age=0" in answer.headers["set-cookie"]
        await ends(copy)
        await ends(browser)
        assert (await api.admin.get("/v1/session")).status == 200


async def test_each_sign_in_has_a_new_token_and_ends_the_earlier_session(api: RunningApi) -> None:
    """A token that an attacker planted or kept is no session after a sign-in."""
    first = await signed_in(api)
    answer = await api.stranger.post("/v1/session", {"key": api.admin.key}, headers={**OURS, "Cookie": first.cookie})
    assert answer.headers["set-cookie"].partition(";")[0] != first.cookie
    assert answer.json["csrf"] != first.csrf
    await ends(first)
    assert (await signed_in(api)).cookie != (await signed_in(api)).cookie


async def test_a_session_ends_after_its_lifetime_or_idle_time(api: RunningApi) -> None:
    """By the database's clock; a use extends the idle time and never the lifetime."""
    for column in ("expires_at", "idle_until"):
        browser = await signed_in(api)
        await api.pool.execute(f"UPDATE tickwright.sessions SET {column} = clock_timestamp()")
        await ends(browser)
    browser = await signed_in(api)
    aged = "UPDATE tickwright.sessions SET seen_at = seen_at - interval '5 minutes', idle_until = idle_until - interval"
    await api.pool.execute(f"{aged} '5 minutes'")
    rows = "SELECT idle_until, expires_at FROM tickwright.sessions ORDER BY id DESC LIMIT 1"
    before = await api.pool.fetchrow(rows)

    async def moved() -> bool:
        assert (await browser.send("GET", "/v1/session")).status == 200
        after = await api.pool.fetchrow(rows)
        return bool(after["idle_until"] > before["idle_until"] and after["expires_at"] == before["expires_at"])

    await eventually_async(moved)


async def test_sessions_are_listed_and_revoked_by_their_key(api: RunningApi) -> None:
    """Own ones, or all for an admin; neither token nor hash is shown, and another key's session is not found."""
    mine, his = await signed_in(api, api.viewer), await signed_in(api, api.operator)
    (own,) = (await mine.send("GET", "/v1/sessions", User_Agent="Firefox\xff")).json["items"]
    assert (own["name"], own["current"]) == ("viewer", True)
    assert own["client"].startswith("127.0.0.1 ")
    everybody = await api.admin.get("/v1/sessions")
    assert [one["name"] for one in everybody.json["items"]] == ["operator", "viewer"]
    assert "tws_" not in everybody.body.decode()
    (await his.send("DELETE", f"/v1/sessions/{own['id']}")).says(404, "session_not_found")
    assert (await his.send("DELETE", f"/v1/sessions/{everybody.json['items'][0]['id']}")).status == 204
    assert (await api.admin.send("DELETE", f"/v1/sessions/{own['id']}")).status == 204
    await ends(mine)
    await ends(his)
    assert (await api.admin.get("/v1/sessions")).json["items"] == []
    rows = await api.pool.fetch("SELECT actor FROM tickwright.audit WHERE action = 'sessions.revoke' ORDER BY id")
    assert [row["actor"] for row in rows] == ["operator", "admin"]


async def test_a_stream_ends_with_its_session(api: RunningApi) -> None:
    """A copy of the cookie receives nothing more after the sign-out."""
    browser = await signed_in(api, api.viewer)
    async with open_stream(api.stranger, {"Cookie": browser.cookie}) as gone, open_stream(api.viewer) as stays:
        await gone.next()
        assert (await browser.send("DELETE", "/v1/session")).status == 204
        await gone.ended(10.0)
        await stays.next()


async def test_sessions_of_one_key_are_bounded(api: RunningApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that signs in repeatedly keeps the newest ones."""
    monkeypatch.setattr("tickwright.api.sessions.OF_KEY_MAX", 3)
    browsers = [await signed_in(api, api.viewer) for _ in range(5)]
    assert len((await api.admin.get("/v1/sessions")).json["items"]) == 3
    await ends(browsers[0])
    assert (await browsers[-1].send("GET", "/v1/session")).status == 200


async def test_signing_in_and_out_is_in_the_audit_trail(api: RunningApi) -> None:
    """Actor and time; never the key. A refused attempt has no entry."""
    browser = await signed_in(api, api.operator)
    await browser.send("DELETE", "/v1/session")
    (await api.stranger.post("/v1/session", {"key": GOOD})).says(401, "unauthenticated")
    rows = await api.pool.fetch("SELECT * FROM tickwright.audit WHERE action LIKE 'session.%' ORDER BY id")
    assert [(row["action"], row["actor"]) for row in rows] == [
        ("session.open", "operator"),
        ("session.close", "operator"),
    ]
    assert api.operator.key is not None
    assert api.operator.key not in str([dict(row) for row in rows])


async def test_sign_ins_that_fail_are_limited_and_good_keys_are_not_locked_out(api: RunningApi) -> None:
    """After a burst 429 with Retry-After, for bad keys of any shape; a valid one still signs in at once."""
    for number in range(FAILURES_BURST):
        bad = GOOD if number % 2 else "guess"
        answer = await api.stranger.post("/v1/session", {"key": bad})
        assert "set-cookie" not in answer.says(401, "unauthenticated").headers
    more = await asyncio.gather(*(api.stranger.post("/v1/session", {"key": GOOD}) for _ in range(100)))
    limited = [answer for answer in more if answer.status == 429]
    assert limited, "a hundred at once, where one a second may fail"
    for answer in limited:
        assert int(answer.says(429, "too_many_sign_ins").headers["retry-after"]) >= 1
    assert (await signed_in(api)).csrf


async def test_sign_ins_of_one_key_write_few_rows_and_delay_no_other_key(api: RunningApi) -> None:
    """Rows of the audit trail are never deleted: a viewer's key must not write one per request."""
    requests = [api.stranger.post("/v1/session", {"key": api.viewer.key}) for _ in range(2 * OPENED_BURST)]
    answers = await asyncio.gather(*requests)
    limited = [answer for answer in answers if answer.status != 200]
    assert len(limited) >= OPENED_BURST // 2
    for answer in limited:
        assert int(answer.says(429, "too_many_sign_ins").headers["retry-after"]) >= 1
    assert (await signed_in(api)).csrf
    assert (await api.viewer.get("/v1/session")).status == 200
    rows = await api.pool.fetchval("SELECT count(*) FROM tickwright.audit WHERE action = 'session.open'")
    assert rows == len(answers) - len(limited) + 1


async def test_a_sign_out_without_a_session_leaves_no_row(api: RunningApi) -> None:
    """A bearer key has no session; it may repeat the request as often as it likes."""
    assert (await api.viewer.send("DELETE", "/v1/session")).status == 204
    assert not await api.pool.fetchval("SELECT count(*) FROM tickwright.audit WHERE action = 'session.close'")


async def test_many_bad_sign_ins_delay_no_good_request(api: RunningApi) -> None:
    """A thousand at once: bearer keys and sign-ins are answered meanwhile."""
    flood = [asyncio.create_task(api.stranger.post("/v1/session", {"key": GOOD})) for _ in range(1_000)]
    assert (await signed_in(api)).csrf
    assert (await api.viewer.get("/v1/session")).status == 200
    answers = await asyncio.gather(*flood)
    assert {answer.status for answer in answers} == {401, 429}
    assert sum(answer.status == 401 for answer in answers) <= FAILURES_BURST + 60


async def test_a_sign_in_does_not_bypass_the_rate_of_its_key(database_url: str) -> None:
    """A session and its key share one rate."""
    async with running_api(database_url, limits=ApiLimits(requests_per_s=0.1, burst=1)) as api:
        browser = await signed_in(api, api.viewer)
        await browser.send("GET", "/v1/session")
        (await browser.send("GET", "/v1/session")).says(429, "rate_limited")


@pytest.mark.parametrize(
    ("headers", "site"),
    [
        ([(b"sec-fetch-site", b"none")], Site.OURS),
        ([(b"sec-fetch-site", b"same-origin"), (b"sec-fetch-site", b"cross-site")], Site.OTHER),
        ([(b"sec-fetch-site", b"")], Site.OTHER),
        ([], Site.UNSAID),
        ([(b"host", b"a")], Site.UNSAID),
        ([(b"origin", b"http://a"), (b"host", b"a")], Site.OURS),
        ([(b"origin", b"HTTP://A:80"), (b"host", b"a")], Site.OURS),
        ([(b"origin", b"http://a"), (b"host", b"a:8080")], Site.OTHER),
        ([(b"origin", b"https://a"), (b"host", b"a:80")], Site.OTHER),
        ([(b"origin", b"http://a"), (b"origin", b"http://a"), (b"host", b"a")], Site.OTHER),
        ([(b"origin", b"http://a"), (b"host", b"a"), (b"host", b"b")], Site.OTHER),
        ([(b"origin", b"http://"), (b"host", b"")], Site.OTHER),
        ([(b"origin", b"http://a@b"), (b"host", b"b")], Site.OTHER),
        ([(b"origin", b"http://["), (b"host", b"a")], Site.OTHER),
        ([(b"origin", b"file://a"), (b"host", b"a")], Site.OTHER),
        ([(b"origin", b"\xff://\xff"), (b"host", b"\xff")], Site.OTHER),
        ([(b"origin", b"https://a"), (b"host", b"inner"), (b"x-forwarded-host", b"a, inner")], Site.OURS),
    ],
)
def test_where_a_request_was_made(headers: list[tuple[bytes, bytes]], site: Site) -> None:
    """The browser's headers decide; an ambiguous request counts as from another site."""
    assert site_of(headers) is site


def test_whether_a_request_came_over_tls() -> None:
    """By the socket, by the proxy's header about the browser's side, or by the dashboard's own address."""
    assert over_tls([], "https")
    assert not over_tls([(b"x-forwarded-proto", b"http, https"), (b"origin", b"http://https")], "http")
    assert over_tls([(b"x-forwarded-proto", b"HTTPS, http")], "http")
    assert over_tls([(b"origin", b"https://a")], "http")


@pytest.fixture
async def remembering(database_url: str) -> AsyncIterator[RunningApi]:
    """An API that caches keys and sessions for a minute."""
    async with running_api(database_url, limits=ApiLimits(key_age_max=timedelta(minutes=1))) as running:
        yield running


async def test_a_key_or_session_that_ends_in_this_process_ends_at_once(remembering: RunningApi) -> None:
    """A session that is signed out or revoked, and a revoked key, are refused by the next request."""
    api = remembering
    out, revoked, of_key = [await signed_in(api, client) for client in (api.admin, api.viewer, api.operator)]
    for browser in (out, revoked, of_key):
        assert (await browser.send("GET", "/v1/session")).status == 200
    assert (await out.send("DELETE", "/v1/session")).status == 204
    assert (await out.send("GET", "/v1/session")).status == 401
    sessions = (await api.admin.get("/v1/sessions")).json["items"]
    [session] = [one["id"] for one in sessions if one["role"] == "viewer"]
    assert (await api.admin.send("DELETE", f"/v1/sessions/{session}")).status == 204
    assert (await revoked.send("GET", "/v1/session")).status == 401
    key = (await api.operator.get("/v1/session")).json["key_id"]
    assert (await api.admin.post(f"/v1/keys/{key}/revoke")).status == 200
    assert (await of_key.send("GET", "/v1/session")).status == 401
    assert (await api.operator.get("/v1/session")).status == 401


async def test_a_key_that_is_replaced_without_an_overlap_ends_at_once(remembering: RunningApi) -> None:
    """Rotation ends the old one here as a revocation does."""
    api = remembering
    key = (await api.operator.get("/v1/session")).json["key_id"]
    assert (await api.admin.post(f"/v1/keys/{key}/rotate", {"overlap": "0s"})).status == 201
    assert (await api.operator.get("/v1/session")).status == 401


async def test_a_lookup_under_way_does_not_outlive_a_revocation(remembering: RunningApi) -> None:
    """A row that was read before the revocation is used once and not cached."""
    api = remembering
    key = str(api.operator.key)
    auth = Authenticator(api.pool, ApiLimits(key_age_max=timedelta(minutes=1)))
    read, go_on = asyncio.Event(), asyncio.Event()
    fetch = api.pool.fetch

    async def held(*given: Any) -> Any:
        rows = await fetch(*given)
        read.set()
        await go_on.wait()
        return rows

    auth._pool = SimpleNamespace(fetch=held)
    lookup = asyncio.create_task(auth.caller_of_key(key))
    await read.wait()
    await api.pool.execute("UPDATE tickwright.api_keys SET revoked_at = now() WHERE name = 'operator'")
    auth.forget()
    go_on.set()
    assert (await lookup).name == "operator"
    with pytest.raises(Rejected, match="revoked"):
        await auth.caller_of_key(key)
