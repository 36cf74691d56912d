"""The partner contract between processes: what one process learns, all of them keep."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType

import psycopg
import pytest

from kit.partners import Side, most_in_window, running_contract, set_partner
from kit.waiting import eventually_async
from tickwright.partners import contract
from tickwright.partners.model import Grant
from tickwright.partners.outcomes import ANSWERED, Failed, Outcome, Throttled
from tickwright.partners.settings import PartnerSettings
from tickwright.store.queries import load


class Callers:
    """A given number of callers of one partner in one process, and their calls."""

    def __init__(self, side: Side, partner_no: int, *, work_s: float = 0.0, outcome: Outcome = ANSWERED) -> None:
        self.side, self.partner_no, self.work_s, self.outcome = side, partner_no, work_s, outcome
        self.times_s: list[float] = []
        self.running = 0
        self.most = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, count: int) -> "Callers":
        """Let ``count`` callers call again and again."""
        self._tasks += [asyncio.create_task(self._call()) for _ in range(count)]
        return self

    async def stop(self) -> None:
        """Stop them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _call(self) -> None:
        while True:
            async with self.side.contract.call(self.partner_no) as call:
                self.times_s.append(time.monotonic())
                self.running += 1
                await asyncio.sleep(self.work_s)
                self.running -= 1
                call.report(self.outcome)


async def _two(url: str, body: Callable[[Side, Side], Awaitable[None]]) -> None:
    async with running_contract(url) as one, running_contract(url) as two:
        await body(one, two)


async def _spend_from_two(url: str) -> list[float]:
    """Return the times of calls by two processes to a partner of 40/s that both want without end."""
    calls: list[float] = []

    async def body(one: Side, two: Side) -> None:
        number = await set_partner(one.pool, rate="40/s")
        callers = [Callers(side, number).start(60) for side in (one, two)]
        await eventually_async(lambda: sum(len(c.times_s) for c in callers) >= 110, 20, what="110 calls")
        for caller in callers:
            await caller.stop()
            assert caller.times_s, "one process got nothing"
            calls.extend(caller.times_s)

    await _two(url, body)
    return calls


async def test_a_rate_holds_in_every_window_over_two_processes(database_url: str) -> None:
    """PAR-1: 40 a second in any second, from the first call on; and most of it is used."""
    calls = await _spend_from_two(database_url)
    assert most_in_window(calls, 1.0) <= 40
    assert most_in_window(calls, 0.1) <= 9  # a tenth of a second's worth, and late calls
    assert most_in_window(calls, 1.0) > 20, "most of it is not used"


async def test_a_process_that_stalled_does_not_catch_up(database_url: str) -> None:
    """PAR-1: instants that passed while the process could not call are lost; it goes on at the usual pace."""
    async with running_contract(database_url) as side:
        number = await set_partner(side.pool, rate="40/s")
        caller = Callers(side, number).start(60)
        for stalls in (1, 2, 3):
            await eventually_async(lambda stalls=stalls: len(caller.times_s) >= 15 * stalls)  # type: ignore[misc]
            time.sleep(0.5)  # noqa: ASYNC251  the stall itself: nothing runs in this process
        await eventually_async(lambda: len(caller.times_s) >= 60)
        await caller.stop()
        assert most_in_window(caller.times_s, 0.1) <= 9, "it caught up"


async def test_the_suite_notices_a_grant_that_is_not_shared(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: each process forgets what the other one took, and the same calls break the limit."""
    mutated = contract.SQL["write_exchange"].replace("next_free_at = to_timestamp(d.next_free_s), ", "")
    assert mutated != contract.SQL["write_exchange"]
    monkeypatch.setattr(contract, "SQL", MappingProxyType({**contract.SQL, "write_exchange": mutated}))
    assert most_in_window(await _spend_from_two(database_url), 1.0) > 40


async def test_a_concurrency_holds_over_two_processes_and_both_get_their_share(database_url: str) -> None:
    """PAR-4: five at once in all; a process that comes later gets its share."""
    most = 0

    async def body(one: Side, two: Side) -> None:
        nonlocal most
        number = await set_partner(one.pool, concurrency=5)
        first = Callers(one, number, work_s=0.02).start(20)
        await eventually_async(lambda: first.running == 5, what="all five are the first one's")
        second = Callers(two, number, work_s=0.02).start(20)
        while min(first.running, second.running) < 2 or len(second.times_s) < 50:
            most = max(most, first.running + second.running)
            await asyncio.sleep(0)
        await first.stop()
        await second.stop()

    async with asyncio.timeout(20):
        await _two(database_url, body)
    assert most == 5


async def test_a_retry_after_to_one_process_stops_all_of_them(database_url: str) -> None:
    """CON-2: the process that got it stops at once, the other one from its next exchange on; both resume after it."""

    async def body(one: Side, two: Side) -> None:
        number = await set_partner(one.pool)
        first = Callers(one, number, work_s=0.01).start(3)
        other = Callers(two, number, work_s=0.01).start(3)
        await eventually_async(lambda: len(first.times_s) > 5 and len(other.times_s) > 5)
        throttled_s = time.monotonic()
        first.outcome = Throttled(timedelta(seconds=6))
        await eventually_async(lambda: one.contract.permits_of(number).why == "retry_after")
        first.outcome, knew_s = ANSWERED, time.monotonic()
        await eventually_async(lambda: two.contract.permits_of(number).why == "retry_after")
        both_knew_s = time.monotonic()
        await eventually_async(lambda: all(max(c.times_s) > throttled_s + 6 for c in (first, other)), what="they go on")
        await first.stop()
        await other.stop()
        assert not [at for at in first.times_s if knew_s < at < throttled_s + 6]
        assert not [at for at in other.times_s if both_knew_s < at < throttled_s + 6]

    await _two(database_url, body)


async def test_a_reset_ends_the_silence_also_in_the_process_that_was_asked_for_it(database_url: str) -> None:
    """A process does not keep a ``Retry-After`` that an operator ended in the shared state."""
    async with running_contract(database_url) as side:
        number = await set_partner(side.pool)
        permits = side.contract.permits_of(number)
        caller = Callers(side, number, work_s=0.01, outcome=Throttled(timedelta(hours=1))).start(3)
        await eventually_async(lambda: permits.why == "retry_after" and not caller.running)
        caller.outcome, count = ANSWERED, len(caller.times_s)
        await side.pool.execute(load("tickwright.capabilities.polling.sql", "partners.sql")["reset_partner"], "acme")
        await eventually_async(lambda: len(caller.times_s) > count, what="it is called")
        await caller.stop()


async def test_a_silence_is_reported_by_the_next_session_when_the_session_is_lost(database_url: str) -> None:
    """CON-2: a ``Retry-After`` that could not be reported before the loss blocks all processes after it."""
    async with running_contract(database_url) as side:
        number = await set_partner(side.pool)
        async with side.contract.call(number) as call:
            await side.pool.execute("UPDATE tickwright.workers SET lost_at = clock_timestamp()")
            call.report(Throttled(timedelta(hours=1)))
        permits = side.contract.permits_of(number)
        await side.session.renew()
        assert not permits.session.holds()
        blocked = "SELECT blocked_until > now() + interval '59 minutes' FROM tickwright.partner_states"
        await eventually_async(lambda: side.pool.fetchval(blocked), what="the silence is in the shared state")
        await eventually_async(lambda: permits.why == "retry_after")


async def _write_between(url: str) -> list[float]:
    """Return the next free instants of two decisions, between which another process writes, and the final one."""
    async with running_contract(url) as one:
        number = await set_partner(one.pool, rate="1/s")
        frees_s = list[float]()

        def decide(partner: contract.PartnerState, now_s: float) -> contract.PartnerDecision:
            frees_s.append(partner.shared.next_free_s)
            if len(frees_s) == 1:
                with psycopg.connect(url) as other:
                    other.execute(
                        "UPDATE tickwright.partner_states SET next_free_at = next_free_at + interval '1 hour'"
                    )
            shared = replace(partner.shared, next_free_s=partner.shared.next_free_s + 1)
            return contract.PartnerDecision(partner, shared, None, None, Grant(now_s), PartnerSettings())

        assert await contract.exchange(one.pool, one.session.token, [number], decide)
        last_s = await one.pool.fetchval("SELECT date_part('epoch', next_free_at) FROM tickwright.partner_states")
        return [*frees_s, last_s]


async def test_a_row_that_changed_since_it_was_read_is_decided_on_again(database_url: str) -> None:
    """PAR-1: no process overwrites a state that it has not read."""
    first_s, second_s, last_s = await _write_between(database_url)
    assert second_s == pytest.approx(first_s + 3600)
    assert last_s == pytest.approx(first_s + 3601)


async def test_the_suite_notices_a_write_over_a_state_that_was_not_read(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: without the row's version, an instant that another process took is granted again."""
    mutated = contract.SQL["write_exchange"].replace(" AND s.xmin::text = d.version", "")
    assert mutated != contract.SQL["write_exchange"]
    monkeypatch.setattr(contract, "SQL", MappingProxyType({**contract.SQL, "write_exchange": mutated}))
    first_s, last_s = await _write_between(database_url)
    assert last_s == pytest.approx(first_s + 1)


BREAKER = {"failures": 4, "window": "10s", "open": "2s", "open_max": "1m"}


async def test_a_breaker_opens_tries_single_calls_and_closes(database_url: str) -> None:
    """PAR-3: after four failures calls stop; then one trial at a time, twice as far apart, until one is answered."""

    async def body(one: Side, two: Side) -> None:
        number = await set_partner(one.pool, breaker=BREAKER)
        callers = [Callers(side, number, work_s=0.01, outcome=Failed("HTTP 500")).start(2) for side in (one, two)]
        lanes = [side.contract.permits_of(number) for side in (one, two)]
        await eventually_async(lambda: all(lane.why == "breaker_open" for lane in lanes), 30)
        calls = [at for caller in callers for at in caller.times_s]
        assert 4 <= len(calls) <= 40  # four, and calls until both processes know of it

        async def opened(times: int) -> bool:
            sql = "SELECT opened_times >= $2 FROM tickwright.partner_states WHERE partner_no = $1"
            return bool(await one.pool.fetchval(sql, number, times))

        await eventually_async(lambda: opened(3), 30)
        trials = sorted(at for caller in callers for at in caller.times_s)[len(calls) :]
        assert len(trials) == 2
        assert trials[1] - trials[0] > 3.9, "the second pause is twice as long"
        for caller in callers:
            caller.outcome = ANSWERED
        await eventually_async(lambda: all(lane.why is None for lane in lanes), 20)
        for caller in callers:
            await caller.stop()
        state = await one.pool.fetchval("SELECT breaker FROM tickwright.partner_states WHERE partner_no = $1", number)
        assert state == "closed"

    await _two(database_url, body)


async def test_an_operators_pause_stops_all_calls_until_it_ends(database_url: str) -> None:
    """PAR-2: every process learns of a pause within a second."""

    async def body(one: Side, two: Side) -> None:
        number = await set_partner(one.pool)
        callers = [Callers(side, number, work_s=0.01).start(2) for side in (one, two)]
        lanes = [side.contract.permits_of(number) for side in (one, two)]
        await eventually_async(lambda: all(caller.times_s for caller in callers))
        await one.pool.execute("UPDATE tickwright.partners SET paused_at = now() WHERE name = 'acme'")
        await eventually_async(
            lambda: all(lane.why == "paused" for lane in lanes) and not any(c.running for c in callers)
        )
        before = [len(caller.times_s) for caller in callers]
        ended_s = time.monotonic()
        await one.pool.execute("UPDATE tickwright.partners SET paused_at = NULL WHERE name = 'acme'")
        assert not [at for c, n in zip(callers, before, strict=True) for at in c.times_s[n:] if at < ended_s]
        await eventually_async(lambda: all(len(c.times_s) > n for c, n in zip(callers, before, strict=True)))
        for caller in callers:
            await caller.stop()

    await _two(database_url, body)


async def test_no_call_is_made_in_quiet_hours_or_with_invalid_settings(database_url: str) -> None:
    """PAR-2: quiet hours close a partner, and so does an invalid value in its row."""
    async with running_contract(database_url) as side:
        quiet = await set_partner(side.pool, "quiet", quiet="00:00-24:00 Europe/Berlin")
        wrong = await set_partner(side.pool, "wrong", concurrency="many")
        callers = [Callers(side, number).start(1) for number in (quiet, wrong)]
        await eventually_async(lambda: side.contract.permits_of(quiet).why == "quiet")
        await eventually_async(lambda: side.contract.permits_of(wrong).why == "paused")
        for caller in callers:
            await caller.stop()
            assert caller.times_s == []


async def test_a_lost_session_makes_no_calls(database_url: str) -> None:
    """CON-1: grants of a session are void when it is declared lost."""
    async with running_contract(database_url) as side:
        number = await set_partner(side.pool, rate="100/s")
        caller = Callers(side, number).start(5)
        await eventually_async(lambda: len(caller.times_s) > 3)
        await side.pool.execute("UPDATE tickwright.workers SET lost_at = clock_timestamp()")
        await side.session.renew()
        count = len(caller.times_s)
        lane = side.contract.permits_of(number)
        assert not lane.session.holds()
        await eventually_async(lambda: side.session.token != 0)
        await eventually_async(lambda: len(caller.times_s) > count)
        await caller.stop()
