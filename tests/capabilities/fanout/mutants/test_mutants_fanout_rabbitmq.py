"""Mutants of fan-out's queue: with a guard taken out, a check has to fail."""

from collections.abc import Callable
from typing import Any

import pytest
from aiormq.channel import Channel
from aiormq.exceptions import ChannelNotFoundEntity

from kit.rabbit_tasks import (
    Fanout,
    check_acknowledged_behind_its_copy,
    check_acknowledged_once,
    check_deleted_delay_queue,
    check_held_holds_up_no_other,
    check_parked_and_not_spent,
)
from kit.servers import RabbitServer
from tickwright.transports.rabbitmq import channel
from tickwright.transports.rabbitmq.connection import UnackedMessage
from tickwright.transports.rabbitmq.tasks import RabbitTaskQueue

CAUGHT = (AssertionError, TimeoutError, ChannelNotFoundEntity)  # the last: a queue that was not declared again


@pytest.fixture(scope="module")
def rabbit_server(mortal_rabbit: RabbitServer) -> RabbitServer:
    """The queues of this module are on a node that may be killed."""
    return mortal_rabbit


def prefetch_unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer takes all there is."""

    async def basic_qos(*_: Any, **__: Any) -> None:
        """Ask for no bound."""

    monkeypatch.setattr(Channel, "basic_qos", basic_qos)


def not_mandatory(monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ confirms what it cannot route."""
    real = channel.publish_frame
    monkeypatch.setattr(channel, "publish_frame", lambda *names: real(*names).removesuffix(b"\1\xce") + b"\0\xce")


def acknowledged_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The original is acknowledged before its copy is confirmed."""
    real = RabbitTaskQueue._forwarded

    async def forwarded(source: RabbitTaskQueue, held: UnackedMessage, *more: Any) -> bool:
        await held.ack()
        return await real(source, held, *more)

    monkeypatch.setattr(RabbitTaskQueue, "_forwarded", forwarded)


def answered_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second answer to a delivery is sent, too."""
    monkeypatch.setattr(UnackedMessage, "can_settle", lambda held: held.subscription.is_alive())


def released_instead_of_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that cannot be delayed goes back into the queue."""
    monkeypatch.setattr(RabbitTaskQueue, "_park", lambda source, delivery, _: source.release(delivery))


@pytest.mark.parametrize(
    ("mutate", "check"),
    [
        (prefetch_unlimited, check_held_holds_up_no_other),
        (not_mandatory, check_deleted_delay_queue),
        (acknowledged_first, check_acknowledged_behind_its_copy),
        (answered_twice, check_acknowledged_once),
    ],
)
async def test_the_mutants_are_caught(
    fanout: Fanout, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None], check: Any
) -> None:
    """A check fails for each missing guard."""
    mutate(monkeypatch)
    with pytest.raises(CAUGHT):
        await check(fanout)


async def test_the_mutant_that_parks_nothing_is_caught(
    fanout: Fanout, mortal_rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task comes back at once, again and again, until it is a dead letter."""
    released_instead_of_parked(monkeypatch)
    with pytest.raises(CAUGHT):
        await check_parked_and_not_spent(fanout, mortal_rabbit)
