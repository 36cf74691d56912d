"""Conditions between a browser and the API, each as a check that fails with ``broken``."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.api import Answer, Client, RunningApi, running_api
from kit.streams import CountingProbe, open_stream
from tickwright.api.context import ApiLimits
from tickwright.api.sessions import FAILURES_BURST
from tickwright.capabilities.operations import snapshots as snapshot_module
from tickwright.capabilities.operations.snapshots import Snapshots
from tickwright.dashboard import Page
from tickwright.domain.errors import Rejected, Unavailable
from tickwright.ports.caller import Role
from tickwright.ports.views import set_sight
from tickwright.process.installation import overview_parts
from tickwright.rest.problems import problem
from tickwright.store.bounds import LEAST_S, TookTooLong, within

CANARY = "canary-91c7"
READ_S = 0.3
SOON_S = 2.0
EVERY_S = 0.1
LOOKS_S = 1.0
INDEX = '<!doctype html><base href="%BASE%" /><meta name="csp-nonce" content="%NONCE%" />'
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self' 'nonce-NONCE'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "manifest-src": "'self'",
    "base-uri": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
CHANGES = ("/v1/jobs", "/v1/task-types/noop/pause")
"""One of the fast path and one of a route; noop's key may do both."""
Check = Callable[[RunningApi], Awaitable[None]]


@asynccontextmanager
async def guarded(database_url: str, folder: Path) -> AsyncIterator[RunningApi]:
    """Run an API with a dashboard, whose viewers see no data of users, and whose reads have less than a second."""
    (folder / "index.html").write_text(INDEX)
    limits = ApiLimits(read_timeout=timedelta(seconds=READ_S))
    async with running_api(database_url, limits=limits, page=Page("", folder), payloads_from=Role.OPERATOR) as api:
        yield api


async def signed_in(api: RunningApi, client: Client) -> tuple[str, str]:
    """Return the cookie and the token of a browser that signs in."""
    answer = await api.stranger.post("/v1/session", {"key": client.key})
    assert answer.status == 200, answer.body
    return answer.headers["set-cookie"].partition(";")[0], answer.json["csrf"]


async def send(api: RunningApi, path: str, **headers: str) -> Answer:
    """Send a change as an admin's dashboard does; headers can be replaced, or left out with an empty one."""
    cookie, csrf = await signed_in(api, api.admin)
    own = {"Cookie": cookie, "Sec-Fetch-Site": "same-origin", "X-Tickwright-Csrf": csrf}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"task_type": "noop"} if path == "/v1/jobs" else None
    whole = {name: value for name, value in {**own, **named}.items() if value}
    return await api.stranger.post(path, body, headers=whole)


async def check_the_page_can_act(api: RunningApi) -> None:
    """The dashboard's requests are done; the other checks depend on that."""
    for path in CHANGES:
        assert (await send(api, path)).status in {200, 201}, "broken: a page of ours is refused"


async def check_the_cookie(api: RunningApi) -> None:
    """No script reads it, no other site sends it, and a cookie set over TLS is never sent without it."""
    for proto, more in (("http", set[str]()), ("https", {"Secure"})):
        answer = await api.stranger.post("/v1/session", {"key": api.viewer.key}, headers={"X-Forwarded-Proto": proto})
        flags = set(answer.headers["set-cookie"].split("; ")[1:])
        assert flags == {"Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict", *more}, f"cookie broken: {flags}"


async def check_the_token(api: RunningApi) -> None:
    """A change without the session's own token is refused."""
    for path in CHANGES:
        for token in ("", "x" * 43, (await signed_in(api, api.viewer))[1]):
            assert (await send(api, path, X_Tickwright_Csrf=token)).status == 403, f"token broken at {path}"


async def check_the_site(api: RunningApi) -> None:
    """A change from another site is refused, even with the token."""
    for path in CHANGES:
        for said in (
            {"Sec_Fetch_Site": "same-site"},
            {"Sec_Fetch_Site": "", "Origin": "https://evil.example"},
            {"Sec_Fetch_Site": ""},
        ):
            assert (await send(api, path, **said)).status == 403, f"site broken at {path}: {said}"


async def check_the_sign_in(api: RunningApi) -> None:
    """No other site signs its visitor in with its own key."""
    answer = await api.stranger.post("/v1/session", {"key": api.viewer.key}, headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.status, answer.headers.get("set-cookie")) == (403, None), "door broken"


async def check_one_cookie(api: RunningApi) -> None:
    """Two cookies of the name are refused: a subdomain may have set one."""
    pair = "; ".join([(await signed_in(api, client))[0] for client in (api.viewer, api.admin)])
    assert (await api.stranger.get("/v1/session", headers={"Cookie": pair})).status == 401, "one cookie broken"


async def check_a_planted_cookie(api: RunningApi) -> None:
    """A cookie that only this host can set outranks one that a subdomain may have set."""
    (own, _), (planted, _) = await signed_in(api, api.viewer), await signed_in(api, api.admin)
    answer = await api.stranger.get("/v1/session", headers={"Cookie": f"{planted}; __Host-{own}"})
    assert (answer.status, answer.json.get("role")) == (200, "viewer"), "planted cookie broken"


async def check_sessions_are_their_keys(api: RunningApi) -> None:
    """Only an admin sees or ends a session of another key."""
    await signed_in(api, api.admin)
    session = (await api.admin.get("/v1/sessions")).json["items"][0]["id"]
    seen = [one["name"] for one in (await api.viewer.get("/v1/sessions")).json["items"]]
    assert set(seen) <= {"viewer"}, "sessions broken: seen"
    assert (await api.viewer.send("DELETE", f"/v1/sessions/{session}")).status == 404, "sessions broken: ended"


async def check_bad_keys_are_limited(api: RunningApi) -> None:
    """After a burst of invalid keys further ones get 429."""
    requests = [api.stranger.post("/v1/session", {"key": "guess"}) for _ in range(2 * FAILURES_BURST)]
    found = {answer.status for answer in await asyncio.gather(*requests)}
    assert found == {401, 429}, f"limit broken: {found}"


async def check_the_policy(api: RunningApi) -> None:
    """Nothing from other origins and nothing inline except styles with this answer's nonce, which is not cached."""
    seen = set()
    for _ in range(2):
        answer = await api.stranger.get("/")
        found = re.search(rb'content="([A-Za-z0-9_-]{24})"', answer.body)
        assert found, "policy broken: no nonce"
        nonce = found[1].decode()
        seen.add(nonce)
        rules = dict(rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";"))
        wanted = {name: rule.replace("NONCE", nonce) for name, rule in POLICY.items()}
        assert rules == wanted, f"policy broken: {rules}"
        assert answer.headers["cache-control"] == "no-store", "policy broken: an answer with its nonce is kept"
    assert len(seen) == 2, "policy broken: a nonce twice"


async def check_roles(api: RunningApi) -> None:
    """A viewer changes nothing, by the fast path or a route; an operator makes no key."""
    tried = [
        await api.viewer.post("/v1/jobs", {"task_type": "noop"}),
        await api.viewer.post("/v1/jobs:cancel", {"task_type": "noop"}),
        await api.operator.post("/v1/keys", {"name": "x", "role": "admin"}),
    ]
    assert [answer.status for answer in tried] == [403] * 3, f"roles broken: {[answer.status for answer in tried]}"


async def check_hiding(api: RunningApi) -> None:
    """A role that may not see data of users finds none: neither in a detail nor in a list, nor by a filter."""
    job = (await api.operator.post("/v1/jobs", {"task_type": "noop", "payload": {"who": CANARY}, "delay": "1h"})).json[
        "id"
    ]
    put = await api.admin.send("PUT", "/v1/entities/ACME", {"party": {"who": CANARY}})
    assert put.status in {200, 201}, put.body
    for path in (f"/v1/jobs/{job}", "/v1/entities/ACME", "/v1/audit?action=entities.put"):
        assert CANARY in (await api.operator.get(path)).body.decode(), path
        assert CANARY not in (await api.viewer.get(path)).body.decode(), f"hiding broken at {path}"
    for client, number in ((api.operator, 1), (api.viewer, 0)):
        found = (await client.get(f"/v1/jobs?text={CANARY}")).json["items"]
        assert len(found) == number, "hiding broken: a filter finds what is hidden"


async def check_masking(api: RunningApi) -> None:
    """Viewers see the host of an address, and no more of it; operators see it whole."""
    put = await api.admin.send("PUT", "/v1/task-types/hook", {"target": f"https://example.com/{CANARY}"})
    assert put.status in {200, 201}, put.body
    assert CANARY in (await api.operator.get("/v1/task-types/hook")).body.decode()
    answer = (await api.viewer.get("/v1/task-types/hook")).body.decode()
    assert "example.com" in answer
    assert CANARY not in answer, "masking broken: a viewer sees a whole address"


async def check_masking_of_searches(api: RunningApi) -> None:
    """A role that sees only the host of an address searches by that, and learns nothing of the rest by a filter."""
    job = (await api.operator.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).json["id"]
    error = (
        "no https://me:hush-91@db.example:8080/deep-91?key=x, then https://other.example/y in words-91, "
        r'nor {"a": "https:\/\/hush-91@json.example\/deep-91"}, '
        "nor https%3A%2F%2Fhush-91%40url.example%2Fdeep-91, nor https://hush-91%2Fa@git.example/deep-91, "
        "nor https://hush-91&#47;a@html.example/deep-91, nor https://hush-91:1234%2Fa@port.example/deep-91 end-91"
    )
    await api.pool.execute("UPDATE tickwright.scheduled_tasks SET error_message = $2 WHERE id = $1", job, error)
    shown = dict.fromkeys(("db.example", "other.example", "json.example", "words-91", "end-91"), 1)
    hidden = dict.fromkeys(("hush-91", "deep-91", "url.example", "git.example", "html.example", "port.example"), 0)
    for text, number in (shown | hidden).items():
        for client, expected in ((api.operator, 1), (api.viewer, number)):
            for path in ("/v1/jobs?text=", "/v1/jobs:counts?text="):
                said = (await client.get(path + text)).json
                found = len(said["items"]) if "items" in said else sum(said["counts"].values())
                assert found == expected, f"masking broken: {text} is found {found} times"


async def check_masking_of_alerts(api: RunningApi) -> None:
    """Facts of an alert have only the host of an address, also if a release wrote them that did not mask."""
    await api.pool.execute(
        "INSERT INTO tickwright.alerts (rule, subject, severity, summary, state, facts) "
        "VALUES ('outbox_oldest', 'x', 'info', 'x', 'firing', $1) ON CONFLICT DO NOTHING",
        json.dumps({"reason": f"no https://example.com/{CANARY}"}),
    )
    assert CANARY in (await api.operator.get("/v1/alerts")).body.decode()
    answer = (await api.viewer.get("/v1/alerts")).body.decode()
    assert "example.com" in answer
    assert CANARY not in answer, "masking broken: a viewer sees a whole address among facts"


async def check_masking_of_streams(api: RunningApi) -> None:
    """A stream shows its reader what an answer would, whatever other readers see."""
    job = (await api.operator.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).json["id"]
    error = f"no https://example.com/{CANARY}"
    await api.pool.execute("UPDATE tickwright.scheduled_tasks SET error_message = $2 WHERE id = $1", job, error)
    async with open_stream(api.operator) as whole, open_stream(api.viewer) as masked:
        shown_to = [
            json.dumps(await stream.until(lambda view: "example.com" in json.dumps(view))) for stream in (whole, masked)
        ]
    assert [CANARY in one for one in shown_to] == [True, False], "masking broken: a stream shows a whole address"


async def check_masking_of_problems(_: RunningApi) -> None:
    """Text and details of a problem, for a role that sees addresses whole and for one that does not."""
    url = f"https://example.com/{CANARY}"
    error = Rejected("a_code", f"no {url}", field="target", found=[url], number=1)
    whole = json.loads(problem(error)[2])
    set_sight(allowed=True, whole=False)
    try:
        masked = json.loads(problem(error)[2])
    finally:
        set_sight(allowed=True)
    assert (whole["detail"], whole["found"]) == (f"no {url}", [url])
    hidden = {"detail": "no https://example.com/…", "found": ["https://example.com/…"]}
    assert masked == whole | hidden, "masking broken: a problem shows a whole address"


async def check_reads_are_bound(api: RunningApi) -> None:
    """A read that the database does not answer is cancelled in time, with the effect of its statement."""
    assert (await api.admin.get("/v1/audit")).status == 200
    async with api.pool.acquire() as connection, _held(connection.transaction()):
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        await connection.execute("LOCK TABLE tickwright.audit IN ACCESS EXCLUSIVE MODE")
        try:
            async with asyncio.timeout(SOON_S):
                answer = await api.admin.get("/v1/audit")
        except TimeoutError:
            raise AssertionError("bound broken: a read waits for a lock") from None
    assert (answer.status, answer.json["code"]) == (503, "query_too_slow"), "bound broken"


@asynccontextmanager
async def _held(transaction: asyncpg.transaction.Transaction) -> AsyncIterator[None]:
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


async def check_what_outlives_is_free(api: RunningApi) -> None:
    """A task that outlives the request is not bounded by it."""
    over = asyncio.Event()

    async def outlives() -> None:
        await over.wait()
        await api.pool.fetchval("SELECT pg_sleep($1)", 2 * LEAST_S)

    with within(0.01):
        task = asyncio.create_task(outlives())
        await asyncio.sleep(0)
    over.set()
    try:
        await task
    except TookTooLong:
        raise AssertionError("bound broken: it bounds a task that outlives the request") from None


@contextmanager
def _watching(snapshots: Snapshots, number: int) -> Iterator[None]:
    opened = [snapshots.subscribe() for _ in range(number)]
    for one in opened:
        one.__enter__()
    try:
        yield
    finally:
        for one in opened:
            one.__exit__(None, None, None)


async def _queries(api: RunningApi, probe: Any, watch: Callable[[Snapshots], Awaitable[None]], number: int) -> None:
    snapshots = Snapshots(api.pool, overview_parts(), version="0", every_s=EVERY_S, probe=probe)
    running = asyncio.create_task(snapshots.run())
    try:
        with _watching(snapshots, number):
            await watch(snapshots)
    finally:
        await snapshots.stop()
        await running


async def check_one_query_for_all(api: RunningApi) -> None:
    """Streams, and requests for the overview beside them, cause one query per round all together."""
    probe, now = CountingProbe(), asyncio.get_running_loop().time
    began_s = now()

    async def watch(snapshots: Snapshots) -> None:
        while now() - began_s < LOOKS_S:
            await asyncio.gather(*(snapshots.latest() for _ in range(20)))
            await asyncio.sleep(EVERY_S / 10)

    await _queries(api, probe, watch, 30)
    most = (now() - began_s) / EVERY_S + 2
    assert 0 < probe.reached_times <= most, f"one look broken: {probe.reached_times} of at most {most:.0f}"


async def check_no_query_without_readers(api: RunningApi) -> None:
    """Without readers no query runs."""
    probe = CountingProbe()
    await _queries(api, probe, lambda _: asyncio.sleep(5 * EVERY_S), 0)
    assert probe.reached_times == 0, "rest broken: it queries without readers"


class Stuck(CountingProbe):
    """A database that does not answer until ``heals`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.heals = asyncio.Event()

    async def reached(self, name: str, /, **facts: object) -> None:
        """Count, and wait."""
        await super().reached(name, **facts)
        await self.heals.wait()


async def check_one_question_at_a_time(api: RunningApi) -> None:
    """A database that does not answer gets no second query until it does."""
    probe, requests = Stuck(), list[int]()

    async def watch(_snapshots: Snapshots) -> None:
        await asyncio.sleep(6 * EVERY_S)
        requests.append(probe.reached_times)
        probe.heals.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_module, "ANSWER_S", EVERY_S)
        patch.setattr(snapshot_module, "SHARE_OF_TIME", 1.0)
        await _queries(api, probe, watch, 1)
    assert requests == [1], f"one question broken: {requests} at once"


async def check_streams_end_with_their_key(api: RunningApi) -> None:
    """A revoked key receives nothing any more."""
    made = (await api.admin.post("/v1/keys", {"name": "leaving", "role": "viewer"})).json
    async with open_stream(api.stranger.with_key(made["key"])) as stream:
        await stream.next()
        assert (await api.admin.post(f"/v1/keys/{made['details']['id']}/revoke")).status == 200
        try:
            await stream.ended(SOON_S)
        except TimeoutError:
            raise AssertionError("streams broken: a revoked key still receives") from None


async def check_each_key_has_its_share_of_streams(api: RunningApi) -> None:
    """One key is refused at its limit, while another key still finds room."""
    snapshots = Snapshots(api.pool, overview_parts(), version="0", streams_per_key=2)
    with ExitStack() as opened:
        for key_id in (1, 1, 2):
            opened.enter_context(snapshots.subscribe(key_id))
        try:
            opened.enter_context(snapshots.subscribe(1))
        except Unavailable:
            return
    raise AssertionError("share broken: one key holds more streams than its limit")


async def check_a_rotated_key_keeps_its_end(api: RunningApi) -> None:
    """The successor of an expiring key expires with it."""
    made = (await api.admin.post("/v1/keys", {"name": "guest", "role": "viewer", "expires_in": "2h"})).json["details"]
    successor = (await api.admin.post(f"/v1/keys/{made['id']}/rotate")).json["details"]
    assert successor["expires_at"] == made["expires_at"], f"rotation broken: it ends at {successor['expires_at']}"
