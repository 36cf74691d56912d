"""The plugin of HTTP callbacks."""

from collections.abc import Sequence

from tickwright.plugin import Context, Plugin
from tickwright.ports.alerts import AlertEndpoints
from tickwright.ports.broker import Broker


class HttpPlugin(Plugin):
    """Delivers to ``http:`` and ``https:`` destinations, and alerts to their receivers."""

    name = "http"

    def brokers(self, context: Context) -> Sequence[Broker]:
        """Return the brokers of callbacks and of alert receivers."""
        from tickwright.transports.http.broker import HttpBroker, ReceiverBroker

        callbacks = HttpBroker(allow=context.settings.targets)
        return callbacks, ReceiverBroker(callbacks, context.ports.get(AlertEndpoints))


PLUGIN = HttpPlugin()
