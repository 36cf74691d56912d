"""The plugin of WebSocket pushes."""

from collections.abc import Sequence

from tickwright.plugin import Context, Plugin
from tickwright.plugin.lazy_broker import LazyBroker
from tickwright.ports.broker import Broker


class WebSocketPlugin(Plugin):
    """Delivers to ``ws:`` and ``wss:`` destinations."""

    name = "websocket"

    def brokers(self, context: Context) -> Sequence[Broker]:
        """Return the broker of pushes."""

        def pushes() -> Broker:
            from tickwright.transports.websocket.broker import WebSocketBroker

            return WebSocketBroker(allow=context.settings.targets)

        return (LazyBroker(frozenset({"ws", "wss"}), pushes),)


PLUGIN = WebSocketPlugin()
