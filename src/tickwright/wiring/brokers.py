"""Which broker carries which scheme, by what the settings name.

Brokers are imported where one is needed: a command that only looks at jobs needs none of their clients.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from tickwright.domain.targets import parse_target
from tickwright.ports.broker import Broker
from tickwright.store.pool import Pool
from tickwright.wiring.settings import Settings

if TYPE_CHECKING:
    from tickwright.brokers.http import HttpBroker
    from tickwright.brokers.websocket import WebSocketBroker


def build_brokers(settings: Settings, pool: Pool) -> dict[str, Broker]:
    """Return a broker per scheme. A scheme without a server is missing, and what goes there waits."""
    from tickwright.brokers.http import HttpBroker
    from tickwright.brokers.postgres import PostgresBroker
    from tickwright.brokers.rabbitmq import RabbitBroker
    from tickwright.brokers.websocket import WebSocketBroker

    brokers: list[Broker] = [
        HttpBroker(allow=settings.targets),
        WebSocketBroker(allow=settings.targets),
        PostgresBroker(pool),
    ]
    if settings.amqp_url is not None:
        brokers.append(RabbitBroker(settings.amqp_url.get_secret_value()))
    return {scheme: broker for broker in brokers for scheme in broker.schemes}


async def close_brokers(brokers: Mapping[str, Broker]) -> None:
    """Release every broker's connections, once each."""
    for broker in {id(broker): broker for broker in brokers.values()}.values():
        await broker.aclose()


def target_check(settings: Settings) -> Callable[[str], None]:
    """Return what refuses, when it is set, a target that could never be sent to. No I/O."""

    @cache
    def brokers() -> tuple["HttpBroker", "WebSocketBroker"]:
        from tickwright.brokers.http import HttpBroker
        from tickwright.brokers.websocket import WebSocketBroker

        return HttpBroker(allow=settings.targets), WebSocketBroker(allow=settings.targets)

    def check(target: str) -> None:
        scheme = parse_target(target).scheme
        for broker in brokers():
            if scheme in broker.schemes:
                broker.check(target)

    return check
