"""RabbitMQ; README.md has the promise, the outcomes and the limits."""

from tickwright.brokers.rabbitmq.broker import RabbitBroker

__all__ = ["RabbitBroker"]
