"""Run claims against a model, step by step, in Redis and in PostgreSQL side by side.

The model is the promise: never two at once, never one twice, windows only forward, no more runs of an entity than its
limit. Whatever Hypothesis makes consumers and zombies do, both stores must answer like the model.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from kit.redis_fanout import LOSE, OPEN, fresh_prefix
from kit.servers import RedisServer
from tickwright.capabilities.fanout.consumer.run_claims import LedgerRunClaims
from tickwright.ports.fanout import HeldRun, Run, RunClaim, RunClaims, RunStart
from tickwright.store.pool import open_pool
from tickwright.transports.redis.connection import RedisClient
from tickwright.transports.redis.stores import RedisRunClaims

T = TypeVar("T")
EMPTY = "TRUNCATE tickwright.fanout_cursors, tickwright.fanout_windows, tickwright.workers CASCADE"
COUNTS = (
    "SELECT date_part('epoch', window_at)::bigint AS w, task_type, succeeded, failed FROM tickwright.fanout_windows"
)
BASE, LENGTH, AT_ONCE = 1_700_000_000, 900, 2
CODES, KINDS = st.sampled_from(["A", "B"]), st.sampled_from(["CDRS", "LOCATIONS", "TARIFFS"])
WINDOWS, OWNERS = st.integers(0, 4).map(lambda n: BASE + n * LENGTH), st.sampled_from([0, 1])
ENDINGS = st.sampled_from(["success", "failure", "release"])
Task = tuple[str, str]


@dataclass
class Cursor:
    """The expected state of one entity and task type."""

    done_s: int = 0
    holder: "tuple[int, int] | None" = None  # owner and number of the claim


@dataclass
class Claim:
    """A granted claim, with the answer of each store."""

    run: Run
    owner: int
    begun: list[RunClaim]
    ended: bool = False


@dataclass
class Model:
    """The promise."""

    cursors: dict[Task, Cursor] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    counts: dict[tuple[int, str], list[int]] = field(default_factory=dict)

    def cursor(self, run: Run) -> Cursor:
        """Return the cursor, created where it is missing."""
        return self.cursors.setdefault((run.entity_code, run.task_type), Cursor())

    def expect(self, run: Run, owner: int) -> RunStart:
        """Return the expected answer, and take the claim."""
        cursor = self.cursor(run)
        running = sum(one.holder is not None for (code, _), one in self.cursors.items() if code == run.entity_code)
        if run.window_s <= cursor.done_s:
            return RunStart.DONE
        if cursor.holder is not None or running >= run.at_once:
            return RunStart.BUSY
        cursor.holder = owner, len(self.claims)
        self.claims.append(Claim(run, owner, []))
        return RunStart.BEGUN

    def is_held(self, number: int) -> bool:
        """Return whether a claim still belongs to its owner."""
        claim = self.claims[number]
        return self.cursor(claim.run).holder == (claim.owner, number)

    def is_last(self, number: int) -> bool:
        """Return whether the task has not begun since."""
        task = self.claims[number].run[:2]
        return not any(claim.run[:2] == task for claim in self.claims[number + 1 :])


class RunLife(RuleBasedStateMachine):
    """Two consumers, their zombies, and two stores."""

    database_url = redis_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pool = self.do(open_pool(self.database_url, min_size=1, max_size=2))
        self.do(self.pool.execute(EMPTY))
        self.link = RedisClient(self.redis_url)
        self.stores: list[RunClaims] = [RedisRunClaims(self.link, prefix=fresh_prefix()), LedgerRunClaims(self.pool)]
        self.owners: list[int] = [self.do(self.pool.fetchval(OPEN)) for _ in range(2)]
        self.model = Model()

    def do(self, work: Awaitable[T]) -> T:
        """Run one asynchronous step to its end."""
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        """Compare what was counted; close the connections of this life."""
        found = {(row["w"], row["task_type"]): [row["succeeded"], row["failed"]] for row in self.do(self._counts())}
        self.do(self.link.aclose())
        self.do(self.pool.close())
        self.loop.close()
        assert found == self.model.counts

    async def _counts(self) -> Any:
        return await self.pool.fetch(COUNTS)

    @rule(runs=st.lists(st.builds(Run, CODES, KINDS, WINDOWS, st.just(AT_ONCE)), min_size=1, max_size=5), who=OWNERS)
    def begin(self, runs: list[Run], who: int) -> None:
        """Begin runs in any order, also the same twice."""
        owner, first = self.owners[who], len(self.model.claims)
        expected = [self.model.expect(run, owner) for run in runs]
        for store in self.stores:
            said = self.do(store.begin(runs, owner))
            assert [one.start for one in said] == expected, type(store).__name__
            begun = [one for one in said if one.start is RunStart.BEGUN]
            for claim, one in zip(self.model.claims[first:], begun, strict=True):
                claim.begun.append(one)

    @precondition(lambda self: self.model.claims)
    @rule(data=st.data(), ending=ENDINGS)
    def end(self, data: st.DataObject, ending: str) -> None:
        """End any claim that ever was, however often."""
        number = data.draw(st.integers(0, len(self.model.claims) - 1))
        claim = self.model.claims[number]
        held = self.model.is_held(number)
        expected = held or (claim.ended and self.model.is_last(number))
        for store, begun in zip(self.stores, claim.begun, strict=True):
            ended = HeldRun(claim.run, begun, "no luck" if ending == "failure" else None, ending == "release")
            assert self.do(store.end([ended], claim.owner)) == [expected], type(store).__name__
        if held:
            self._write(claim, ending)

    def _write(self, claim: Claim, ending: str) -> None:
        cursor = self.model.cursor(claim.run)
        cursor.holder, claim.ended = None, True
        if ending == "release":
            return
        counts = self.model.counts.setdefault((claim.run.window_s, claim.run.task_type), [0, 0])
        counts[ending == "failure"] += 1
        if ending == "success":
            cursor.done_s = claim.run.window_s

    @precondition(lambda self: self.model.claims)
    @rule(data=st.data(), who=OWNERS)
    def renew(self, data: st.DataObject, who: int) -> None:
        """Renew any claim under any owner."""
        number = data.draw(st.integers(0, len(self.model.claims) - 1))
        claim, owner = self.model.claims[number], self.owners[who]
        expected = self.model.is_held(number) and claim.owner == owner
        for store, begun in zip(self.stores, claim.begun, strict=True):
            assert self.do(store.renew([HeldRun(claim.run, begun)], owner)) == [expected], type(store).__name__

    @rule(who=OWNERS)
    def lose(self, who: int) -> None:
        """Declare a session lost; Redis, which has no sessions, learns of it when the claims expire."""
        old, ledger = self.owners[who], self.stores[1]
        assert isinstance(ledger, LedgerRunClaims)
        self.do(self._lose(ledger, old))
        for number, claim in enumerate(self.model.claims):
            if claim.owner == old and self.model.is_held(number):
                self.model.cursor(claim.run).holder = None
                self.do(self.stores[0].end([HeldRun(claim.run, claim.begun[0], released=True)], old))
                claim.begun[0] = claim.begun[0]._replace(fence=1)  # as after its expiry
        self.owners[who] = self.do(self.pool.fetchval(OPEN))

    async def _lose(self, ledger: LedgerRunClaims, token: int) -> None:
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute(LOSE, token)
            await ledger.reclaim(connection, [token])


@pytest.mark.timeout(300)
def test_both_stores_keep_the_promises(database_url: str, redis_server: RedisServer) -> None:
    """Never two at once, never one twice, windows only forward, fences hold: in every order of steps."""
    RunLife.database_url, RunLife.redis_url = database_url, redis_server.url
    run_state_machine_as_test(
        RunLife,
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
