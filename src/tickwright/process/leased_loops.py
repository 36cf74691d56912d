"""The loops of which one process at a time runs each, beside those of a capability's own wiring."""

from tickwright.capabilities.fanout.retention import Upkeep as FanoutUpkeep
from tickwright.capabilities.polling.relay.relay import PollRelay
from tickwright.capabilities.polling.trackers.freshness import FreshnessJudge
from tickwright.capabilities.polling.wheels.loops import Corrector, Registrar, Selector
from tickwright.engine import retention as upkeep
from tickwright.engine.leased_loop import TERMS as ROUNDS
from tickwright.engine.leased_loop import LeasedRounds
from tickwright.engine.leases import LeasedService, Leases
from tickwright.process.brokers import poll_events, poll_log, polls_topic
from tickwright.process.report_retention import ReportUpkeep
from tickwright.process.settings import Settings


def poll_relays(settings: Settings, leases: Leases) -> list[PollRelay]:
    """Return a relay of polls per shard, each with a log of its own."""
    shards = range(settings.relay_shards)
    return [PollRelay(leases, poll_log(settings), topic=polls_topic(settings), shard=shard) for shard in shards]


def scheduler_loops(settings: Settings, leases: Leases) -> list[LeasedService]:
    """Return the loops of the scheduler role."""
    return [
        upkeep.Upkeep(leases, upkeep.UpkeepTerms(stuck_after=settings.stuck_after)),
        LeasedRounds("registrar", leases, Registrar().round, terms=ROUNDS),
        LeasedRounds("selector", leases, Selector(shards=settings.relay_shards).round, terms=ROUNDS),
        LeasedRounds("corrector", leases, Corrector(poll_events(settings)).round, terms=ROUNDS),
        LeasedRounds("freshness", leases, FreshnessJudge().round, terms=ROUNDS),
        LeasedRounds("fanout-upkeep", leases, FanoutUpkeep().round, terms=upkeep.TERMS, rest_max_s=30),
        LeasedRounds("report-upkeep", leases, ReportUpkeep(settings).round, terms=upkeep.TERMS, rest_max_s=30),
    ]
