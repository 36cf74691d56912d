"""The plugin of the partner contract, which limits calls to other companies' services."""

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tickwright.plugin import Context, Plugin

if TYPE_CHECKING:
    from tickwright.partners.contract import PartnerContract


class PartnersPlugin(Plugin):
    """Provides this process's contract to every consumer that calls partners."""

    name = "partners"
    parts: ClassVar = {"metrics": "tickwright.partners.metrics:METRICS"}

    def provide(self, context: Context) -> None:
        """Offer the contract; its first user starts its service and its metrics."""

        def make() -> "PartnerContract":
            from tickwright.engine.session import WorkerSession
            from tickwright.partners.contract import PartnerContract, counted_calls
            from tickwright.store.pool import Exchanges

            contract = PartnerContract(context.pool, context.ports.get(WorkerSession))
            context.facts["exchange_ms"] = Exchanges.usual_ms
            context.run(contract)
            context.count(contract.samples)
            context.add_counters(partners=partial(counted_calls, contract))
            return contract

        context.ports.offer("tickwright.partners.contract:PartnerContract", make)


PLUGIN = PartnersPlugin()
