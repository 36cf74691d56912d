"""Parts in Redis against a model, step by step: whatever listeners, zombies and supervisors do, in any order.

The model has the promises: a part is stored once, nothing older gets into a newer hash, a newer epoch begins with an
empty one, another record's hash is left alone, a report that has ended accepts no part, the count is the number of
marks, and every hash has a time to live.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from redis.asyncio import Redis

from kit.redis_fanout import fresh_prefix
from kit.servers import RedisServer
from tickwright.domain.errors import Unavailable
from tickwright.ports.reports import PartKey, Put, PutAnswer
from tickwright.transports.redis.connection import RedisClient
from tickwright.transports.redis.stores import RedisParts

T = TypeVar("T")
LIVES_S = (60, 600)
REPORTS, EPOCHS, LISTENERS = st.integers(1, 2), st.sampled_from([1, 2, 9, 10]), st.sampled_from(["users", "tags", "x"])
NONCES = st.sampled_from(["5f", "5f", "a0"])
KEYS = st.builds(PartKey, REPORTS, EPOCHS, LISTENERS, NONCES)
DATA, NOTES, LIVES = st.binary(max_size=3), st.sampled_from(["", "a", "b"]), st.sampled_from(LIVES_S)


@dataclass
class Hash:
    """What should be under a report's key."""

    nonce: str
    epoch: int = 0
    parts: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    status: str = ""
    life_s: int = 0

    def fields(self) -> dict[bytes, bytes]:
        """Return the fields of the hash."""
        if self.status:
            return {b"record": self.nonce.encode(), b"status": self.status.encode()}
        found = {
            b"record": self.nonce.encode(),
            b"epoch": str(self.epoch).encode(),
            b"queryDoneCount": str(len(self.parts)).encode(),
        }
        for listener, (data, note) in self.parts.items():
            found |= {listener.encode(): data, f"done:{listener}".encode(): note.encode()}
        return found


class PartsLife(RuleBasedStateMachine):
    """Two reports, whose parts are put, read, renewed, closed and flushed."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.link = RedisClient(self.url)
        self.redis: Any = Redis.from_url(self.url)
        self.parts = RedisParts(self.link, fresh_prefix())
        self.model: dict[int, Hash] = {}

    def do(self, work: Awaitable[T]) -> T:
        """Run one asynchronous step to its end."""
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        """Close the connections of this run."""
        self.do(self.link.aclose())
        self.do(self.redis.aclose())
        self.loop.close()

    @rule(key=KEYS, data=DATA, note=NOTES, life_s=LIVES)
    def put(self, key: PartKey, data: bytes, note: str, life_s: int) -> None:
        """Put any listener's part of any epoch, however often."""
        if self._is_not_ours(key.report_id, key.nonce):
            with pytest.raises(Unavailable, match="another installation"):
                self.do(self.parts.put(key, data, note, ttl=timedelta(seconds=life_s)))
            return
        expected = self._expected(key, data, note, life_s)
        assert self.do(self.parts.put(key, data, note, ttl=timedelta(seconds=life_s))) == expected

    def _is_not_ours(self, number: int, nonce: str) -> bool:
        known = self.model.get(number)
        return known is not None and known.nonce != nonce

    def _expected(self, key: PartKey, data: bytes, note: str, life_s: int) -> PutAnswer:
        known = self.model.get(key.report_id)
        if known is not None and (known.status or known.epoch > key.epoch):
            return PutAnswer(Put.STALE, "")
        if known is None or known.epoch < key.epoch:
            known = self.model[key.report_id] = Hash(key.nonce, key.epoch)
        known.life_s = life_s
        if key.listener in known.parts:
            return PutAnswer(Put.ALREADY, known.parts[key.listener][1])
        known.parts[key.listener] = (data, note)
        return PutAnswer(Put.STORED, note)

    @rule(key=KEYS)
    def get(self, key: PartKey) -> None:
        """Read any part of any epoch."""
        known = self.model.get(key.report_id, Hash(key.nonce))
        ours = known.nonce == key.nonce and not known.status and known.epoch == key.epoch
        there = ours and key.listener in known.parts
        assert self.do(self.parts.get(key)) == (known.parts[key.listener][0] if there else None)

    @rule(epochs=st.lists(st.tuples(REPORTS, EPOCHS), max_size=3), life_s=LIVES)
    def touch(self, epochs: list[tuple[int, int]], life_s: int) -> None:
        """Renew any reports and epochs."""
        self.do(self.parts.touch(epochs, ttl=timedelta(seconds=life_s)))
        for number, epoch in epochs:
            known = self.model.get(number)
            if known is not None and not known.status and known.epoch == epoch:
                known.life_s = life_s

    @rule(number=REPORTS, status=st.sampled_from(["finished", "failed", "cancelled"]), nonce=NONCES, life_s=LIVES)
    def close(self, number: int, status: str, nonce: str, life_s: int) -> None:
        """Close a report, however often."""
        self.do(self.parts.close(number, status, nonce=nonce, ttl=timedelta(seconds=life_s)))
        if not self._is_not_ours(number, nonce):
            self.model[number] = Hash(nonce, status=status, life_s=life_s)

    @rule(number=REPORTS)
    def lose(self, number: int) -> None:
        """Delete a hash, as a flush, a restart without persistence or an expiry does."""
        self.do(self.redis.delete(self.parts.key(number)))
        self.model.pop(number, None)

    @invariant()
    def redis_equals_the_model(self) -> None:
        """Field by field, with the time to live that was set last."""
        for number in (1, 2):
            known = self.model.get(number)
            assert self.do(self.redis.hgetall(self.parts.key(number))) == ({} if known is None else known.fields())
            left_ms = self.do(self.redis.pttl(self.parts.key(number)))
            if known is not None:
                shorter_ms = max([0, *(life_s * 1000 for life_s in LIVES_S if life_s < known.life_s)])
                assert shorter_ms < left_ms <= known.life_s * 1000


@pytest.mark.timeout(300)
def test_parts_in_redis_equal_the_model_in_every_order(redis_server: RedisServer) -> None:
    """The promises of the module's docstring hold after every sequence of calls."""
    PartsLife.url = redis_server.url
    run_state_machine_as_test(
        PartsLife,
        settings=settings(
            max_examples=80,
            stateful_step_count=30,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
