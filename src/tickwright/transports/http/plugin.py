"""The plugin of HTTP callbacks."""

from collections.abc import Callable, Mapping, Sequence

from tickwright.plugin import Context, Plugin, Settings
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

    def target_checks(self, settings: Settings) -> Mapping[str, Callable[[str], None]]:
        """Return the checks that refuse addresses that must not be reached."""
        from tickwright.transports.http.broker import HttpBroker

        broker = HttpBroker(allow=settings.targets)
        return dict.fromkeys(broker.schemes, broker.check)


PLUGIN = HttpPlugin()
