"""The plugin of RabbitMQ."""

from collections.abc import Mapping, Sequence
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import SecretStr

from tickwright.domain.errors import Rejected, TickwrightError
from tickwright.plugin import Context, Ownership, Plugin, Settings, SettingsPart
from tickwright.plugin.findings import Finding, server_finding
from tickwright.plugin.settings import text
from tickwright.ports.broker import Broker
from tickwright.ports.transports import ReportTransport, TaskTransport

ANNOUNCEMENTS_AT_ONCE = 20


def _check_amqp_url(url: str) -> None:
    """Refuse a URL that cannot be RabbitMQ's. The text omits the URL, which can hold a password."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"amqp", "amqps"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise Rejected(
            "invalid_settings", "write amqp://USER:PASSWORD@HOST:PORT/VHOST, or amqps:// for TLS; %2F is the host /"
        )


class RabbitSettings(SettingsPart):
    """Where RabbitMQ is.

    Attributes:
        amqp_url: RabbitMQ; without it ``amqp:`` destinations wait.
    """

    amqp_url: Annotated[SecretStr, text(_check_amqp_url, keep=True)] | None = None


class RabbitPlugin(Plugin):
    """Delivers to ``amqp:`` destinations, and provides the task queue and the exchanges of reports."""

    name = "rabbitmq"
    settings = RabbitSettings

    def provide(self, context: Context) -> None:
        """Offer the queues, if RabbitMQ is configured."""
        mine = context.settings.part(RabbitSettings)
        if mine.amqp_url is None:
            return
        url = mine.amqp_url.get_secret_value()
        context.ports.offer(TaskTransport, lambda: _task_transport(url, context.settings.amqp_prefix))
        context.ports.offer(ReportTransport, lambda: _report_transport(url, context.settings.amqp_prefix))

    def brokers(self, context: Context) -> Sequence[Broker]:
        """Return the broker, if RabbitMQ is configured."""
        url = context.settings.part(RabbitSettings).amqp_url
        if url is None:
            return ()
        from tickwright.transports.rabbitmq.broker import RabbitBroker

        return (RabbitBroker(url.get_secret_value()),)

    def reserved_prefixes(self, settings: Settings) -> Sequence[str]:
        """Return the prefix of our exchanges."""
        return (settings.amqp_prefix,)

    def ownerships(self, context: Context) -> Sequence[Ownership]:
        """Return the ownership of the prefix of exchanges and queues."""
        mine = context.settings.part(RabbitSettings)
        if mine.amqp_url is None:
            return ()
        url, prefix = mine.amqp_url.get_secret_value(), context.settings.amqp_prefix

        async def claim(installation: str) -> str:
            from tickwright.transports.rabbitmq.topology import claim_prefix

            return await claim_prefix(url, prefix, installation)

        return (
            Ownership(
                place="RabbitMQ",
                roles=frozenset({"scheduler", "fanout-consumer", "report-listener"}),
                prefix=prefix,
                setting="TICKWRIGHT_AMQP_PREFIX",
                mark=f"the exchange {prefix}.installation",
                claim=claim,
            ),
        )

    async def examine(self, context: Context, alive: Mapping[str, int]) -> Sequence[Finding]:
        """Return whether RabbitMQ answers, if it is configured, and whether its queues are as they should be."""
        url = context.settings.part(RabbitSettings).amqp_url
        found = [await server_finding(broker, self.name, "TICKWRIGHT_AMQP_URL") for broker in self.brokers(context)]
        if url is not None and found[0].verdict == "ok":
            found.append(await _queues(url.get_secret_value(), context.settings.amqp_prefix))
        return found


async def _queues(url: str, prefix: str) -> Finding:
    from tickwright.transports.rabbitmq.topology import examine, fanout_names

    names, check = fanout_names(prefix), "fanout queues"
    try:
        missing = await examine(url, names)
    except TickwrightError as error:
        return Finding(check, "fail", error.message, "make them as they should be, or use another prefix")
    if len(missing) == len(names.queues):
        return Finding(check, "ok", "not there yet; the first scheduler or fanout-consumer makes them")
    if missing:
        remedy = "start a process with the role fanout-consumer, which makes them"
        return Finding(check, "warn", f"missing: {', '.join(missing)}", remedy)
    return Finding(check, "ok", "as they should be")


def _task_transport(url: str, prefix: str) -> TaskTransport:
    from tickwright.transports.rabbitmq.tasks import RabbitTaskTransport

    return RabbitTaskTransport(url, prefix)


def _report_transport(url: str, prefix: str) -> ReportTransport:
    from tickwright.transports.rabbitmq.tasks import RabbitReportTransport

    return RabbitReportTransport(url, prefix, slots=ANNOUNCEMENTS_AT_ONCE)


PLUGIN = RabbitPlugin()
