"""Many expensive requests of one caller do not block others: each caller has a share of the database's connections."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Self

import asyncpg
import pytest

from kit.api import Answer, Client, RunningApi, running_api
from kit.mutants import mutate
from kit.waiting import eventually_async
from tickwright.api.context import ApiLimits
from tickwright.domain.errors import Contended
from tickwright.store import bounds as shares
from tickwright.store.bounds import Request, Shares
from tickwright.store.pool import SETTINGS

CONNECTIONS, SHARE, FOR_ALL = 6, 3, 5
"""Connections of the kit's pool, the share of one caller, and that of all callers together."""
LONG = timedelta(minutes=5)
LIMITS = ApiLimits(key_age_max=LONG, read_timeout=LONG)
EXPENSIVE = "/v1/audit"
WAIT_FOR_A_LOCK = """
SELECT count(*) FROM pg_locks
 WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@pytest.fixture
async def api(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningApi]:
    """An API whose statements wait for a lock as long as a test lasts; the viewer's key is looked up already."""
    monkeypatch.setitem(SETTINGS, "lock_timeout", "0")
    async with running_api(database_url, limits=LIMITS) as running:
        assert (await running.viewer.get("/v1/session")).status == 200
        yield running


class Held:
    """A table that is locked until ``release``, and the requests that need it."""

    def __init__(self, api: RunningApi, connection: asyncpg.Connection, table: str = "audit") -> None:
        self._api, self._connection, self._table = api, connection, table
        self._locking = connection.transaction()
        self.requests_sent: list[asyncio.Task[Answer]] = []

    async def __aenter__(self) -> Self:
        await self._locking.start()
        await self._connection.execute(f"LOCK TABLE tickwright.{self._table} IN ACCESS EXCLUSIVE MODE")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._locking.rollback()
        await asyncio.gather(*self.requests_sent, return_exceptions=True)

    def ask(self, client: Client, times: int, path: str = EXPENSIVE) -> None:
        """Send requests that wait."""
        self.requests_sent += [asyncio.create_task(client.get(path)) for _ in range(times)]

    async def waits(self, statements: int, requests: int = 0) -> None:
        """Wait until so many requests have arrived, all are queued or running, and so many are statements."""
        server = self._api.listener.server_state
        await eventually_async(lambda: len(server.tasks) >= requests, 30, what="the requests are there")
        await eventually_async(lambda: self._statements_are(statements), 30, what="the statements wait")

    async def _statements_are(self, wanted: int) -> bool:
        return bool(await self._connection.fetchval(WAIT_FOR_A_LOCK) >= wanted)

    async def statements(self) -> int:
        """Return how many statements wait for the lock."""
        return int(await self._connection.fetchval(WAIT_FOR_A_LOCK))


async def many_expensive_reads(api: RunningApi, other: asyncpg.Connection) -> None:
    """Twenty reads of a viewer wait in the database; requests of an operator, whose key is not cached, are answered."""
    async with Held(api, other) as held:
        held.ask(api.viewer, 20)
        await held.waits(SHARE, 20)
        assert await held.statements() == SHARE
        assert (await api.operator.get("/v1/task-types")).status == 200
        assert (await api.operator.post("/v1/jobs", {"task_type": "noop", "delay": "1h"})).status == 201
        assert await held.statements() == SHARE
        assert not any(task.done() for task in held.requests_sent)
    assert [task.result().status for task in held.requests_sent] == [200] * 20


async def test_one_key_leaves_connections_to_others(api: RunningApi, other: asyncpg.Connection) -> None:
    """At most half of the connections are one key's; its other requests wait, and each is answered."""
    await many_expensive_reads(api, other)


async def test_the_suite_notices_keys_without_a_share(
    api: RunningApi, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: a key may have every connection."""
    mutate(monkeypatch, Shares._may_begin, "caller.held < self._each", "True")
    with pytest.raises(AssertionError):
        await many_expensive_reads(api, other)


async def test_all_keys_together_leave_a_connection_for_shared_work(api: RunningApi, other: asyncpg.Connection) -> None:
    """Beside two keys with expensive reads an unknown key is looked up, and a job is written, in no key's share."""
    job = {"task_type": "noop", "delay": "1h"}
    assert (await api.operator.post("/v1/jobs", job)).status == 201
    async with Held(api, other) as held:
        held.ask(api.viewer, 10)
        held.ask(api.operator, 10)
        await held.waits(FOR_ALL, 20)
        assert await held.statements() == FOR_ALL
        assert (await api.admin.get("/v1/session")).status == 200
        assert (await api.operator.post("/v1/jobs", job)).status == 201
        assert not any(task.done() for task in held.requests_sent)


async def test_a_session_has_the_share_of_its_key(api: RunningApi, other: asyncpg.Connection) -> None:
    """Another cookie of the key is no other caller."""
    signed_in = await api.stranger.post("/v1/session", {"key": api.viewer.key})
    cookie = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0]}
    assert (await api.stranger.get("/v1/session", headers=cookie)).status == 200
    assert (await api.viewer.get("/v1/session")).status == 200
    async with Held(api, other) as held:
        held.ask(api.viewer, 5)
        held.requests_sent += [asyncio.create_task(api.stranger.get(EXPENSIVE, headers=cookie)) for _ in range(5)]
        await held.waits(SHARE, 10)
        assert (await api.operator.get("/v1/task-types")).status == 200
        assert await held.statements() == SHARE


async def test_a_full_queue_refuses_requests_of_its_own_key(
    api: RunningApi, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """429 with advice in its text; waiting requests are answered, and so are those of others."""
    monkeypatch.setattr(shares, "WAITING_MAX", 2)
    async with Held(api, other) as held:
        held.ask(api.viewer, SHARE + 2)
        await held.waits(SHARE, SHARE + 2)
        problem = (await api.viewer.get(EXPENSIVE)).says(429, "too_many_at_once")
        assert problem.headers["retry-after"] == "1"
        assert "send fewer at once" in problem.json["detail"]
        assert (await api.viewer.get("/v1/session")).status == 200, "it needs no connection"
        assert (await api.operator.get("/v1/task-types")).status == 200
        assert not any(task.done() for task in held.requests_sent)
    assert [task.result().status for task in held.requests_sent] == [200] * (SHARE + 2)


async def test_a_request_of_a_disconnected_client_takes_no_connection(
    api: RunningApi, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the queue at its head, and earlier where the queue is full."""
    await disconnected_clients(api, other, monkeypatch)


async def test_the_suite_notices_disconnected_clients_that_take_connections(
    api: RunningApi, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mutant: the client is not checked."""
    mutate(monkeypatch, Shares._begin_waiting, "request.is_gone()", "False")
    with pytest.raises(AssertionError):
        await disconnected_clients(api, other, monkeypatch)


async def disconnected_clients(api: RunningApi, other: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the viewer's requests wait for its share and disconnect."""
    monkeypatch.setattr(shares, "WAITING_MAX", 2)
    begun = counted(monkeypatch)
    async with Held(api, other) as held:
        held.ask(api.viewer, SHARE)
        await held.waits(SHARE)
        clients = [await a_client(api) for _ in range(2)]
        await held.waits(SHARE, SHARE + 2)
        for client in clients:
            client.close()
            await client.wait_closed()
        server = api.listener.server_state
        await eventually_async(lambda: len(server.connections) <= SHARE + 1, what="the server knows")
        held.ask(api.viewer, 1)
        await eventually_async(
            lambda: len(server.tasks) == SHARE + 1, what="disconnected ones have left the full queue"
        )
        clients = [await a_client(api)]
        await held.waits(SHARE, SHARE + 2)
        clients[0].transport.abort()
        await eventually_async(lambda: len(server.connections) <= SHARE + 2, what="the server knows")
    await eventually_async(lambda: not server.tasks, what="all requests are over")
    assert [task.result().status for task in held.requests_sent] == [200] * (SHARE + 1)
    assert len(begun) == SHARE + 1


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that records later requests that take a connection."""
    begun, real = [], Shares._begin

    def begin(self: Shares, request: Any, caller: Any) -> None:
        begun.append(request)
        real(self, request, caller)

    monkeypatch.setattr(Shares, "_begin", begin)
    return begun


async def a_client(api: RunningApi) -> asyncio.StreamWriter:
    """Return a connection that has sent an expensive request of the viewer."""
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(f"GET {EXPENSIVE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {api.viewer.key}\r\n\r\n".encode())
    return writer


async def test_many_unknown_keys_take_one_connection(api: RunningApi, other: asyncpg.Connection) -> None:
    """They are looked up together, one statement at a time; requests of a cached key continue."""
    async with Held(api, other, "api_keys") as held:
        for number in range(20):
            held.ask(api.stranger.with_key(f"tw_{number:043}"), 1, "/v1/jobs")
        await held.waits(1, 20)
        assert (await api.viewer.get("/v1/task-types")).status == 200
        assert await held.statements() == 1
        assert not any(task.done() for task in held.requests_sent)
    assert [task.result().status for task in held.requests_sent] == [401] * 20


async def test_links_without_a_key_have_the_share_of_their_address(api: RunningApi, other: asyncpg.Connection) -> None:
    """A client that guesses signed links takes no more than one key."""
    link = f"/v1/report-files/1?expires=4000000000&signature={'0' * 64}"
    async with Held(api, other, "reports") as held:
        held.ask(api.stranger, 20, link)
        await held.waits(SHARE, 20)
        assert (await api.operator.get("/v1/task-types")).status == 200
        assert await held.statements() == SHARE


async def test_reads_of_shared_figures_wait_in_no_queue(api: RunningApi, other: asyncpg.Connection) -> None:
    """Figures that one caller requests are shown to all: a key that has used up its share delays no other."""
    async with Held(api, other) as held:
        held.ask(api.viewer, SHARE + 5)
        await held.waits(SHARE, SHARE + 5)
        assert (await api.viewer.get("/v1/task-types:figures")).status == 200
        assert (await api.viewer.get("/v1/overview")).status == 200
        assert (await api.viewer.get("/readyz")).status == 200
        assert not any(task.done() for task in held.requests_sent)


async def test_a_request_with_a_connection_needs_no_second_place() -> None:
    """Otherwise requests of one share would wait for each other; no state is left when all are over."""
    of_all, request = Shares(2), a_request("a")
    assert await of_all.enter(request, None)
    assert not await of_all.enter(request, None)
    of_all.leave(request)
    assert (of_all._held, of_all._callers) == (0, {})


async def test_callers_alternate_while_all_connections_are_in_use() -> None:
    """The caller that waits longest is next, whatever another requests; each caller's requests keep their order."""
    of_all, order = Shares(2), list[str]()

    async def one(caller: str, name: str, over: asyncio.Event) -> None:
        request = a_request(caller)
        await of_all.enter(request, None)
        order.append(name)
        await over.wait()
        of_all.leave(request)

    names = ["a1", "a2", "a3", "b1", "b2", "c1"]
    overs = {name: asyncio.Event() for name in names}
    tasks = [asyncio.create_task(one(name[0], name, overs[name])) for name in names]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        assert sum(not overs[name].is_set() for name in order) <= 1, "one has the only place"
        if order:
            overs[order[-1]].set()
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_a_request_cancelled_as_it_gets_its_place_passes_it_on() -> None:
    """Its task ends before it runs again."""
    of_all, first = Shares(2), a_request("a")
    await of_all.enter(first, None)
    waiting = [asyncio.create_task(of_all.enter(a_request("a"), None)) for _ in range(2)]
    await asyncio.sleep(0)
    of_all.leave(first)
    waiting[0].cancel()
    assert await waiting[1]
    assert of_all._held == 1


async def test_a_request_that_waits_too_long_gets_the_reason() -> None:
    """For its own key: 429, since no statement ran. For others, or after a statement: a timeout."""
    of_all = Shares(4)
    held = [a_request("a"), a_request("a"), a_request("b")]
    for request in held:
        assert await of_all.enter(request, None)
    with pytest.raises(Contended, match="send fewer at once"):
        await of_all.enter(a_request("a"), 0.01)
    with pytest.raises(TimeoutError):
        await of_all.enter(a_request("b"), 0.01)
    of_all.leave(held[0])
    assert await of_all.enter(a_request("a"), None)
    with pytest.raises(TimeoutError):
        await of_all.enter(held[0], 0.01)


def a_request(caller: str) -> Request:
    """Return a request of ``caller``."""
    return Request(caller, lambda: False)
