"""RabbitMQ; README.md has the promise, the outcomes and the limits."""

from tickwright.brokers.rabbitmq.broker import RabbitBroker
from tickwright.brokers.rabbitmq.dead_letters import RabbitDeadTasks
from tickwright.brokers.rabbitmq.owner import owner
from tickwright.brokers.rabbitmq.report_topology import ReportExchanges, ReportNames
from tickwright.brokers.rabbitmq.tasks import RabbitTasks
from tickwright.brokers.rabbitmq.topology import TASK_KEY, FanoutNames, declare, examine, prepare

__all__ = [
    "TASK_KEY",
    "FanoutNames",
    "RabbitBroker",
    "RabbitDeadTasks",
    "RabbitTasks",
    "ReportExchanges",
    "ReportNames",
    "declare",
    "examine",
    "owner",
    "prepare",
]
