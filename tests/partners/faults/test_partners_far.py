"""Partners are called far from the database: slowly and within their limits, or readiness gives the reason."""

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from capabilities.jobs.faults.test_latency import PATIENCE_S, _readiness
from kit.consumers import ConsumerProcess, all_done, done_times, events, http_of, queue_empty, seed
from kit.fanout import MODULE, Hub, fanout_world
from kit.nodes import running, settings_of
from kit.partners import Courier
from kit.processes import kill_group
from kit.tcp_proxy import TcpProxy
from kit.waiting import eventually_async
from tickwright.app.declarations import Declarations
from tickwright.capabilities.polling.consumer.courier import Answer, Poll
from tickwright.store.pool import Exchanges, Pool, RoundTrips, open_pool, slowness

pytestmark = pytest.mark.storm

RATE_PER_S = 20


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[TcpProxy]:
    """A proxy to the test's database."""
    async with TcpProxy("127.0.0.1", int(database_url.rpartition(":")[2].partition("/")[0])) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def near() -> None:
    """Clear measurements of earlier tests."""
    RoundTrips._last_s.clear()
    Exchanges._last_s.clear()


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    """A pool without the proxy."""
    pool = await open_pool(database_url, max_size=2)
    yield pool
    await pool.close()


@pytest.mark.parametrize("others", [[], ["near"], ["far"]], ids=["alone", "with a near one", "two far ones"])
async def test_polls_go_on_at_100_ms_each_way_and_keep_to_the_rate(
    database_url: str, proxy: TcpProxy, pool: Pool, tmp_path: Path, others: list[str]
) -> None:
    """P4: each poll is made once, and the courier's log has 20 a second at most, however far each process is."""
    urls = [
        proxy.rewrite(database_url),
        *(proxy.rewrite(database_url) if one == "far" else database_url for one in others),
    ]
    proxy.delay(0.1)
    async with Courier() as courier:
        trackers = await seed(pool, 120, rate=f"{RATE_PER_S}/s", http=http_of(courier))
        children = [ConsumerProcess(url, tmp_path / f"{n}.log", lease_s=8.0) for n, url in enumerate(urls)]
        try:
            await eventually_async(lambda: all_done(pool, trackers), PATIENCE_S, what="every poll is done")
        finally:
            for child in children:
                kill_group(child.process)
        assert Counter(courier.asked) == Counter(trackers.external_ids)
        assert await done_times(pool, trackers) == Counter(trackers.ids)
        assert courier.most_within(1.0) <= RATE_PER_S
    assert "db_clock_jump" not in _logs(tmp_path)


async def test_a_consumer_whose_latency_changes_keeps_to_the_rate(
    database_url: str, proxy: TcpProxy, pool: Pool, tmp_path: Path
) -> None:
    """P4: its estimate of the database's clock does not move with its latency."""
    async with Courier() as courier:
        trackers = await seed(pool, 160, rate=f"{RATE_PER_S}/s", http=http_of(courier))
        child = ConsumerProcess(proxy.rewrite(database_url), tmp_path / "far.log", lease_s=8.0)
        try:
            for latency_s in (0.0, 0.15, 0.0, 0.05, 0.15, 0.02, 0.0):
                proxy.delay(latency_s)
                count = len(courier.requests)
                await eventually_async(lambda: len(courier.requests) >= count + 20, PATIENCE_S)  # noqa: B023
            await eventually_async(lambda: all_done(pool, trackers), PATIENCE_S)
        finally:
            kill_group(child.process)
        assert courier.most_within(1.0) <= RATE_PER_S
        assert await done_times(pool, trackers) == Counter(trackers.ids)
    assert "db_clock_jump" not in _logs(tmp_path)


@pytest.mark.parametrize("each_way_s", [1, 2])
async def test_a_consumer_that_is_too_far_reports_it_and_doubles_no_poll(
    database_url: str, proxy: TcpProxy, pool: Pool, tmp_path: Path, each_way_s: int
) -> None:
    """Readiness names what is too slow; once the latency is low again, each poll is done once."""
    asked = Counter[int]()
    program = Declarations()

    @program.partner("acme", rate=f"{RATE_PER_S}/s")
    async def ask(poll: Poll) -> Answer:
        asked[poll.tracker_id] += 1
        return Answer("moving")

    async with running(settings_of(proxy.rewrite(database_url), tmp_path, ""), program, "poll-consumer") as node:
        first = await seed(pool, 5)
        await eventually_async(lambda: all_done(pool, first), PATIENCE_S)
        proxy.delay(each_way_s)
        trackers = await seed(pool, 40, due="now() + interval '1 second'")
        await eventually_async(lambda: _says(node, "database_slow: "), PATIENCE_S)
        await eventually_async(lambda: _says(node, str(2 * each_way_s)), PATIENCE_S, what="with the measured time")
        proxy.heal()
        await eventually_async(lambda: all_done(pool, trackers), PATIENCE_S)
        await eventually_async(lambda: _says(node, "ok"), PATIENCE_S)
        await eventually_async(lambda: queue_empty(pool), PATIENCE_S)
    assert await done_times(pool, trackers) == Counter(trackers.ids)
    recorded = Counter(event["tracker_id"] for event in await events(pool))
    assert recorded <= Counter([*first.ids, *trackers.ids])


def _logs(folder: Path) -> str:
    return "".join(log.read_text(errors="replace") for log in folder.glob("*.log"))


async def _says(node: Any, word: str) -> bool:
    return word in (await _readiness(node))["database"]


async def test_entities_of_a_partner_are_polled_at_100_ms_each_way(database_url: str, proxy: TcpProxy) -> None:
    """Fan-out calls partners under the same contract: each task runs once."""
    codes = [f"E{number}" for number in range(12)]
    async with fanout_world(database_url, None, None) as world:
        await world.put_module()
        await world.pool.execute(
            "INSERT INTO tickwright.partners (name, settings) VALUES ('hub', '{\"rate\": \"5/s\"}')"
        )
        hub = Hub()
        proxy.delay(0.1)
        async with world.consumer({MODULE: hub}, slots=4, database_url=proxy.rewrite(database_url)):
            for code in codes:
                await world.put_task(code, partner="hub")
            await eventually_async(lambda: len(hub.ended) == len(codes), PATIENCE_S, what="every task has run")
            proxy.heal()
    assert Counter(hub.codes) == Counter(codes)
    assert hub.overlaps == []


@pytest.mark.parametrize(("took_s", "complains"), [(Exchanges.SLOW_MS / 1000 + 0.1, True), (1.0, False)])
def test_exchanges_that_outlast_a_grant_have_their_own_reason(took_s: float, complains: bool) -> None:
    """Also near the database, where too many processes wait for each other; one slow exchange is no reason."""
    for one_s in (0.01, took_s, took_s, took_s):
        Exchanges.note(one_s)
    assert ("database_slow: an exchange over partners' limits takes 3100 ms" in (slowness() or "")) == complains
    for _ in range(3):
        Exchanges.note(0.01)
    assert slowness() is None
