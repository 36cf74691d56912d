"""The promises of every broker, tested on each of them with a real receiver."""

import asyncio
import json
from dataclasses import replace
from datetime import timedelta

import pytest

from kit.broker_sides import Side
from tickwright.domain.errors import Rejected
from tickwright.ports.broker import Accepted, Message, Refused, Unknown

BODY = b'{ "b": 1,\n "a": "\xc3\xa9 \\u20ac", "price": 1.10 }'
SHORT = timedelta(seconds=0.5)
HEADERS = {"tickwright-attempt": "3", "tickwright-task-type": "invoice.remind"}
BAD_DESTINATIONS = [
    "",
    "nonsense",
    "https://",
    "amqp:",
    "pg:",
    "ws://a b",
    "kafka:",
    "python:handler",
    "ftp://x/",
]


def message(side: Side, number: int = 42) -> Message:
    """Return a message to the good destination of a side."""
    return Message(f"job_{number}", side.destination, BODY, key="k", headers=HEADERS, timeout=timedelta(seconds=10))


async def test_accepted_means_that_the_receiver_has_it(side: Side) -> None:
    """It has the same id, the same bytes and the same headers."""
    assert await side.broker.publish(message(side)) == Accepted()
    (taken,) = await side.taken()
    assert (taken.id, taken.body) == ("job_42", BODY)
    assert {name.lower(): value for name, value in taken.headers.items()}.items() >= HEADERS.items()


async def test_every_attempt_carries_the_same_id(side: Side) -> None:
    """A resend is recognisable, and where the receiver checks ids it is no second message."""
    for _ in range(3):
        assert await side.broker.publish(message(side)) == Accepted()
    assert {taken.id for taken in await side.taken()} == {"job_42"}


async def test_refused_means_that_it_was_not_taken(side: Side) -> None:
    """After a refusal the receiver has nothing, and the same message can be sent again."""
    await side.refuse()
    outcome = await side.broker.publish(message(side))
    assert isinstance(outcome, Refused)
    assert not outcome.final
    assert outcome.reason.isprintable()
    assert await side.taken() == []
    await side.recover()
    assert await side.broker.publish(message(side)) == Accepted()
    assert [taken.id for taken in await side.taken()] == ["job_42"]


async def test_silence_is_unknown_and_ends_with_the_timeout(side: Side) -> None:
    """Without an answer the outcome is unknown; the attempt ends by its deadline."""
    assert await side.broker.publish(message(side, 1)) == Accepted()
    await side.be_silent()
    started = asyncio.get_running_loop().time()
    outcome = await side.broker.publish(replace(message(side, 2), timeout=SHORT))
    assert isinstance(outcome, Unknown)
    assert outcome.code == "timeout"
    assert 0.4 < asyncio.get_running_loop().time() - started < 10


@pytest.mark.matrix
async def test_many_into_silence_take_no_longer_than_one(side: Side) -> None:
    """Deadlines run concurrently, so a dead receiver cannot block a batch."""
    assert await side.broker.publish(message(side, 1)) == Accepted()
    await side.be_silent()
    started = asyncio.get_running_loop().time()
    batch = [replace(message(side, number), timeout=SHORT) for number in range(50)]
    outcomes = await side.broker.publish_many(batch)
    assert not any(isinstance(outcome, Accepted) for outcome in outcomes)
    assert asyncio.get_running_loop().time() - started < 10, "one by one they take 25 s"


async def test_a_dead_endpoint_never_raises(side: Side) -> None:
    """Before and after the loss of the connection a publish returns a value, in time."""
    assert await side.broker.publish(message(side, 1)) == Accepted()
    await side.die()
    for number in range(5):
        outcome = await side.broker.publish(replace(message(side, number), timeout=SHORT))
        assert isinstance(outcome, Refused | Unknown)
    assert isinstance(outcome, Refused), "nothing listens there, so nothing can have been taken"
    assert not outcome.final


async def test_readiness_is_answered_within_a_second_or_so(side: Side) -> None:
    """It is true while open, quick when the receiver is gone, and false after closing."""
    assert await side.broker.ready()
    await side.die()
    async with asyncio.timeout(4):  # a connection may take five
        await side.broker.ready()
    await side.broker.aclose()
    assert not await side.broker.ready()


async def test_many_have_one_outcome_each_in_order(side: Side) -> None:
    """A message that cannot be sent at all does not disturb its neighbours."""
    batch = [message(side, number) for number in range(60)]
    batch[20] = replace(batch[20], destination="nonsense")
    batch[40] = replace(batch[40], destination=side.destination + " ")
    outcomes = await side.broker.publish_many(batch)
    refused = [index for index, outcome in enumerate(outcomes) if not isinstance(outcome, Accepted)]
    assert refused == [20, 40]
    assert len(outcomes) == 60
    wanted = {one.id for index, one in enumerate(batch) if index not in refused}
    assert {taken.id for taken in await side.taken()} == wanted


HUGE = {"x-big": "a" * 200_000}
MANY = {f"x-{number}-{'a' * 200}": "b" * 200 for number in range(600)}
NAMED = {"x-" + "a" * 300: "b"}


@pytest.mark.parametrize("headers", [HUGE, MANY, NAMED, {"x-line": "a\nb"}], ids=["huge", "many", "long name", "line"])
async def test_headers_that_cannot_be_sent_cost_no_other_message_an_attempt(
    side: Side, headers: dict[str, str]
) -> None:
    """The others of its batch are taken at once, and that one is taken or finally refused."""
    batch = [message(side, number) for number in range(20)]
    batch[7] = replace(batch[7], headers=headers)
    outcomes = await side.broker.publish_many(batch)
    one = outcomes.pop(7)
    assert outcomes == [Accepted()] * 19
    assert isinstance(one, Accepted) or (isinstance(one, Refused) and one.final)


async def test_no_message_is_an_empty_list(side: Side) -> None:
    """An empty batch costs nothing and fails nothing."""
    assert await side.broker.publish_many([]) == []


async def test_many_concurrent_calls_are_safe(side: Side) -> None:
    """A hundred publishes at once on a cold broker are all accepted, each exactly once."""
    outcomes = await asyncio.gather(*(side.broker.publish(message(side, number)) for number in range(100)))
    assert set(outcomes) == {Accepted()}
    assert sorted(taken.id for taken in await side.taken()) == sorted(f"job_{number}" for number in range(100))


async def test_one_id_sent_twice_at_once_is_accepted_twice(side: Side) -> None:
    """Two attempts of one message may overlap after a lost lease; neither disturbs the other."""
    outcomes = await side.broker.publish_many([message(side)] * 10)
    assert outcomes == [Accepted()] * 10
    assert {taken.id for taken in await side.taken()} == {"job_42"}


async def test_a_cancelled_publish_leaves_the_broker_usable(side: Side) -> None:
    """A worker that is stopped during an attempt breaks nothing for the others."""
    assert await side.broker.publish(message(side, 1)) == Accepted()
    for turns in range(12):
        task = asyncio.get_running_loop().create_task(side.broker.publish(message(side, 2)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    assert await side.broker.publish(message(side, 3)) == Accepted()


async def test_closing_twice_is_harmless_and_a_closed_broker_refuses(side: Side) -> None:
    """After ``aclose`` nothing is sent and nothing raises."""
    assert await side.broker.publish(message(side, 1)) == Accepted()
    await side.broker.aclose()
    await side.broker.aclose()
    outcome = await side.broker.publish(message(side, 2))
    assert isinstance(outcome, Refused)
    assert (outcome.code, outcome.final) == ("broker_closed", False)


async def test_closing_an_unused_broker_is_harmless(side: Side) -> None:
    """Connections are made by the first publish, so there may be none."""
    await side.broker.aclose()


@pytest.mark.parametrize("destination", BAD_DESTINATIONS)
async def test_an_invalid_destination_is_rejected_and_finally_refused(side: Side, destination: str) -> None:
    """``check`` raises before a task type is stored; ``publish`` reports that a retry cannot help."""
    if destination.partition(":")[0] in side.broker.schemes:
        assert destination != side.destination
    with pytest.raises(Rejected):
        side.broker.check(destination)
    outcome = await side.broker.publish(replace(message(side), destination=destination))
    assert isinstance(outcome, Refused)
    assert outcome.final


@pytest.mark.matrix
async def test_the_good_destination_passes_the_check(side: Side) -> None:
    """``check`` and ``publish`` agree on valid destinations."""
    side.broker.check(side.destination)
    assert side.destination.partition(":")[0] in side.broker.schemes


async def test_the_body_arrives_byte_for_byte(side: Side) -> None:
    """Space, escapes and number forms are not rewritten, so a signature over the bytes holds."""
    bodies = [BODY, b"[]", b'"\\u0000"', json.dumps({"x": "a" * 50_000}).encode(), b" {} \n"]
    for number, body in enumerate(bodies):
        assert await side.broker.publish(replace(message(side, number), body=body)) == Accepted()
    assert sorted(taken.body for taken in await side.taken()) == sorted(bodies)
