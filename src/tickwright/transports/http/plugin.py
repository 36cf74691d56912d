"""The plugin of HTTP callbacks."""

from collections.abc import Sequence

from tickwright.plugin import Context, Plugin
from tickwright.plugin.lazy_broker import LazyBroker
from tickwright.ports.alerts import ALERTS, AlertEndpoints
from tickwright.ports.broker import Broker


class HttpPlugin(Plugin):
    """Delivers to ``http:`` and ``https:`` destinations, and alerts to their receivers."""

    name = "http"

    def brokers(self, context: Context) -> Sequence[Broker]:
        """Return the brokers of callbacks and of alert receivers."""

        def callbacks() -> Broker:
            from tickwright.transports.http.broker import HttpBroker

            return HttpBroker(allow=context.settings.targets)

        def receivers() -> Broker:
            from tickwright.transports.http.broker import ReceiverBroker

            return ReceiverBroker(calls, context.ports.get(AlertEndpoints))

        calls = LazyBroker(frozenset({"http", "https"}), callbacks)
        return calls, LazyBroker(frozenset({ALERTS}), receivers)


PLUGIN = HttpPlugin()
