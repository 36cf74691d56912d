"""Callbacks by HTTP; README.md has the promise, the outcomes and the limits."""

from tickwright.brokers.http.broker import HttpBroker

__all__ = ["HttpBroker"]
