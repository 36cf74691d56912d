"""Callbacks by HTTP, to addresses and to receivers of alerts; README.md has promise, outcomes and limits."""

from tickwright.transports.http.broker import HttpBroker, ReceiverBroker

__all__ = ["HttpBroker", "ReceiverBroker"]
