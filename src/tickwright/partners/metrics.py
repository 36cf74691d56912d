"""What a process knows of its calls to partners, whoever makes them: polls of trackers and runs of entities alike."""

from collections.abc import Sequence

from tickwright.observe.metrics import Sample, Source
from tickwright.partners.contract import PartnerContract


def contract_source(contract: PartnerContract) -> Source:
    """Return what reads the partners that this process has called, once for all of its capabilities."""

    def read() -> Sequence[Sample]:
        samples: list[Sample] = []
        for lane in [one for one in contract.lanes.values() if one.name]:
            samples += [
                Sample("tickwright_partner_running_calls", lane.held, (lane.name,)),
                Sample("tickwright_partner_closed", float(lane.closed), (lane.name,)),
            ]
            samples += [
                Sample("tickwright_partner_calls_total", count, (lane.name, outcome))
                for outcome, count in list(lane.outcomes.items())
            ]
        return samples

    return read
