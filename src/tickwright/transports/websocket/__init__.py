"""Pushes by WebSocket; README.md has the frames, the outcomes and the limits."""

from tickwright.transports.websocket.broker import WebSocketBroker

__all__ = ["WebSocketBroker"]
