"""Slow providers beside fast ones: what a fast one waits for, at an aggregate message, at four, and at a thousand."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from tickwright.bench.fanout_queue import TaskQueue, until
from tickwright.bench.ground import Ground
from tickwright.bench.report import Figures, quantile
from tickwright.bench.servers import Servers

CONSUMERS = 3
FAST_S, SLOW_S = 0.1, 5.0
ENTITIES, SLOW_ENTITIES, SLOTS = 1000, 50, 100
WARM = 60
READY_WITHIN_S = 60.0
DONE_WITHIN_S = 120.0
SEED = 7

Say = Callable[[str], None]
Entities = Sequence[tuple[str, Sequence[float]]]
_steps = count(1)


class Answer(NamedTuple):
    """One provider's answer: what it takes, and when it was asked and had answered, in seconds since the publish."""

    seconds: float
    done_s: float
    asked_s: float
    consumer: int


async def hub(ground: Ground, servers: Servers, queue: TaskQueue, say: Say, details: dict[str, Any]) -> Figures:
    """Return when four providers have answered: one after the other on one consumer, and each on a slot of its own.

    ``details`` gets when each provider was asked by which consumer: ``before`` and ``after``.
    """
    providers = [SLOW_S, FAST_S, FAST_S, FAST_S]
    with _consumers(ground, servers, 1, slots=1):
        await _ready(queue, 1)
        await _answers(ground, queue, [("warm", [0.0])])
        before = await _answers(ground, queue, [("all", providers)])
    with _consumers(ground, servers, CONSUMERS, slots=1):
        await _ready(queue, CONSUMERS)
        await _answers(ground, queue, [(f"warm{n}", [FAST_S]) for n in range(2 * CONSUMERS)])
        after = await _answers(ground, queue, [(f"provider{n}", [seconds]) for n, seconds in enumerate(providers)])
    details |= {"before": _shown(before), "after": _shown(after)}
    figures = {
        "before_done_ms": max(one.done_s for one in before) * 1000,
        "fast_done_ms": max(one.done_s for one in after if one.seconds == FAST_S) * 1000,
        "all_done_ms": max(one.done_s for one in after) * 1000,
    }
    say(f"done after {figures}")
    return figures


async def many(ground: Ground, servers: Servers, queue: TaskQueue, say: Say) -> Figures:
    """Return how much later the fast ones of a thousand are done when one in twenty takes five seconds."""
    fast = [(f"fast{n}", [FAST_S]) for n in range(ENTITIES - SLOW_ENTITIES)]
    slow = [(f"slow{n}", [SLOW_S]) for n in range(SLOW_ENTITIES)]
    mixed = random.Random(SEED).sample([*fast, *slow], ENTITIES)
    with _consumers(ground, servers, CONSUMERS, slots=SLOTS):
        await _ready(queue, CONSUMERS)
        await _answers(ground, queue, [(f"warm{n}", [0.0]) for n in range(WARM * CONSUMERS)])
        alone_s = _p99(await _answers(ground, queue, fast))
        beside_s = _p99(await _answers(ground, queue, mixed))
    say(f"p99 of the fast ones: {alone_s * 1000:.0f} ms alone, {beside_s * 1000:.0f} ms beside slow ones")
    return {
        "fast_alone_p99_ms": alone_s * 1000,
        "fast_beside_p99_ms": beside_s * 1000,
        "fast_p99_ratio": beside_s / alone_s,
    }


def _shown(answers: Sequence[Answer]) -> list[dict[str, float]]:
    """Return the answers in the order in which they were asked for, with the consumers counted from one."""
    found = sorted(answers, key=lambda one: one.asked_s)
    consumers = [*dict.fromkeys(one.consumer for one in found)]
    return [
        {
            "takes_ms": round(one.seconds * 1000),
            "asked_ms": round(one.asked_s * 1000),
            "done_ms": round(one.done_s * 1000),
            "consumer": consumers.index(one.consumer) + 1,
        }
        for one in found
    ]


def _p99(answers: Sequence[Answer]) -> float:
    return quantile(sorted(one.done_s for one in answers if one.seconds == FAST_S), 0.99)


@contextmanager
def _consumers(ground: Ground, servers: Servers, processes: int, *, slots: int) -> Iterator[None]:
    environment = {
        **servers.environment(),
        "BENCH_LOG": str(ground.log()),
        "TICKWRIGHT_CONCURRENCY": str(slots),
        "TICKWRIGHT_LOG_LEVEL": "warning",
    }
    words = ("fanout-consumer", "--app", "tickwright.bench.fanout_program:app")
    for _ in range(processes):
        ground.launch(*words, environment=environment)
    try:
        yield
    finally:
        ground.stop()


async def _ready(queue: TaskQueue, consumers: int) -> None:
    async def all_there() -> bool:
        return (await queue.waiting())[1] == consumers

    await until(all_there, READY_WITHIN_S, "consumers")


async def _answers(ground: Ground, queue: TaskQueue, entities: Entities) -> list[Answer]:
    """Publish a task per entity; return when each provider had answered."""
    step = f"step{next(_steps)}."
    answers = sum(len(seconds) for _, seconds in entities)
    named = [(step + code, seconds) for code, seconds in entities]
    began_s = await queue.publish(named, now_s=ground.now_s(), key=ground.message_key())

    async def found() -> list[list[str]]:
        events = [event for event in ground.events() if event[1].startswith(step)]
        return events if len(events) == answers else []

    events = await until(found, DONE_WITHIN_S, "answers")
    return [
        Answer(float(seconds), float(done_s) - began_s, float(asked_s) - began_s, int(consumer))
        for _, _, seconds, done_s, asked_s, consumer in events
    ]
