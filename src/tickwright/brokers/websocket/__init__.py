"""Pushes by WebSocket; README.md has the frames, the outcomes and the limits."""

from tickwright.brokers.websocket.broker import WebSocketBroker

__all__ = ["WebSocketBroker"]
