"""RabbitMQ; README.md has the promise, the outcomes and the limits."""

from tickwright.transports.rabbitmq.broker import RabbitBroker
from tickwright.transports.rabbitmq.dead_letters import RabbitDeadLetters
from tickwright.transports.rabbitmq.tasks import RabbitTaskQueue
from tickwright.transports.rabbitmq.topology import (
    TASK_KEY,
    FanoutNames,
    ReportExchanges,
    ReportNames,
    declare,
    examine,
    owner,
    prepare,
)

__all__ = [
    "TASK_KEY",
    "FanoutNames",
    "RabbitBroker",
    "RabbitDeadLetters",
    "RabbitTaskQueue",
    "ReportExchanges",
    "ReportNames",
    "declare",
    "examine",
    "owner",
    "prepare",
]
