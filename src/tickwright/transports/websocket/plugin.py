"""The plugin of WebSocket pushes."""

from collections.abc import Callable, Mapping, Sequence

from tickwright.plugin import Context, Plugin, Settings
from tickwright.ports.broker import Broker


class WebSocketPlugin(Plugin):
    """Delivers to ``ws:`` and ``wss:`` destinations."""

    name = "websocket"

    def brokers(self, context: Context) -> Sequence[Broker]:
        """Return the broker of pushes."""
        from tickwright.transports.websocket.broker import WebSocketBroker

        return (WebSocketBroker(allow=context.settings.targets),)

    def target_checks(self, settings: Settings) -> Mapping[str, Callable[[str], None]]:
        """Return the checks that refuse addresses that must not be reached."""
        from tickwright.transports.websocket.broker import WebSocketBroker

        broker = WebSocketBroker(allow=settings.targets)
        return dict.fromkeys(broker.schemes, broker.check)


PLUGIN = WebSocketPlugin()
