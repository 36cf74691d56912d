"""Callbacks by HTTP, to addresses and to receivers of alerts; README.md has promise, outcomes and limits."""

from tickwright.brokers.http.broker import HttpBroker
from tickwright.brokers.http.receivers import ReceiverBroker

__all__ = ["HttpBroker", "ReceiverBroker"]
