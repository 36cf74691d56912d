"""Consumers of polls for tests: trackers with waiting polls, a consumer in this process or a separate one."""

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kit.partners import Courier
from kit.processes import spawn
from kit.waiting import eventually_async
from tickwright.capabilities.polling.consumer.consumer import PollConsumer
from tickwright.capabilities.polling.consumer.courier import Courier as Function
from tickwright.capabilities.polling.consumer.http_courier import HttpCourier, read_http
from tickwright.capabilities.polling.consumer.queue import QueueBesideLog, QueueSource, reclaim
from tickwright.domain.addresses import AllowList
from tickwright.domain.leases import LeaseTerms
from tickwright.engine.session import WorkerSession
from tickwright.engine.wakeup.turns import Turns
from tickwright.partners.contract import PartnerContract, put_partner
from tickwright.partners.settings import PartnerSettings
from tickwright.ports.polls import PollSource
from tickwright.ports.service import NO_PROBE, Probe, Service
from tickwright.store.pool import Pool, open_pool
from tickwright.transports.kafka.poll_source import KafkaPollSource

EVENTS_TO = "pg:tickwright.poll-events"
TERMS = LeaseTerms(timedelta(seconds=1.5), timedelta(seconds=0.3))
LONG = LeaseTerms(timedelta(seconds=8), timedelta(seconds=1))
INTERVAL_MINUTES = 120


@dataclass
class Trackers:
    """Trackers of one partner with waiting polls in ``poll_queue``."""

    partner_no: int
    slot_id: int
    due_at: datetime
    ids: list[int]

    @property
    def external_ids(self) -> list[str]:
        """Return the external ids of the trackers."""
        return [f"T{tracker_id}" for tracker_id in self.ids]


def http_of(courier: Courier) -> dict[str, Any]:
    """Return the configuration of a partner that calls ``courier``."""
    return http_of_url(courier.url)


def http_of_url(url: str) -> dict[str, Any]:
    """Return the configuration of a partner whose courier is at a URL."""
    return {"url": url, "status": "shipment.status", "at": "shipment.at", "events": "shipment.events"}


async def seed(pool: Pool, count: int, *, name: str = "acme", due: str = "now()", **settings: Any) -> Trackers:
    """Set a partner up, and make ``count`` trackers of it with waiting polls of the second ``due``."""
    await put_partner(pool, name, json.dumps(settings))
    partner_no = await pool.fetchval("SELECT partner_no FROM tickwright.partners WHERE name = $1", name)
    account_no = await pool.fetchval("SELECT tickwright.account_number('shop')")
    due_at = await pool.fetchval(f"SELECT date_trunc('second', {due})")
    slot_id = await _slot(pool, due_at)
    ids = [row[0] for row in await pool.fetch(_TRACKERS, count, account_no, slot_id * 60 + due_at.second, partner_no)]
    await pool.execute(_SLICE, due_at, slot_id, partner_no, INTERVAL_MINUTES, count)
    trackers = Trackers(partner_no, slot_id, due_at, ids)
    await deliver(pool, trackers, account_no)
    return trackers


async def deliver(pool: Pool, trackers: Trackers, account_no: int = 1, *, turn_polls: int = 1000) -> None:
    """Make their polls wait (once more), a thousand to a row."""
    for begin in range(0, len(trackers.ids), turn_polls):
        ids = trackers.ids[begin : begin + turn_polls]
        numbers, names = [account_no] * len(ids), trackers.external_ids[begin : begin + turn_polls]
        await pool.execute(_DELIVER, trackers.due_at, trackers.slot_id, trackers.partner_no, ids, numbers, names)


async def _slot(pool: Pool, due_at: datetime) -> int:
    await pool.execute(_WHEEL, INTERVAL_MINUTES)
    minute = int(due_at.timestamp()) // 60 % INTERVAL_MINUTES
    await pool.execute(_SLOT, minute, INTERVAL_MINUTES, due_at.replace(second=0))
    return minute


_WHEEL = "INSERT INTO tickwright.poll_wheels VALUES ($1, 0) ON CONFLICT DO NOTHING"
_SLOT = """INSERT INTO tickwright.poll_slots (slot_id, interval_minutes, next_due_at, prev_due_at)
           VALUES ($1, $2::integer, $3::timestamptz + make_interval(mins => $2::integer), $3) ON CONFLICT DO NOTHING"""
_TRACKERS = """INSERT INTO tickwright.trackers
                 (id, created_at, tracking_until, account_no, place, partner_no, status, external_id)
               SELECT n, now(), now() + interval '60 days', $2, $3, $4, 'registered', 'T' || n
                 FROM (SELECT nextval('tickwright.tracker_ids') AS n FROM generate_series(1, $1)) AS made
               RETURNING id"""
_SLICE = """INSERT INTO tickwright.poll_slices (due_at, slot_id, partner_no, interval_minutes, selected)
            VALUES (date_trunc('minute', $1::timestamptz), $2, $3, $4, $5)
            ON CONFLICT (due_at, slot_id, partner_no)
            DO UPDATE SET selected = poll_slices.selected + excluded.selected"""
_DELIVER = """INSERT INTO tickwright.poll_queue (due_at, slot_id, partner_no, ids, account_nos, external_ids)
              VALUES ($1, $2, $3, $4, $5, $6)"""


# ---------------------------------------------------------------------- results of polls


async def done_times(pool: Pool, trackers: Trackers) -> Counter[int]:
    """Return how often the ledger has each poll as done."""
    sql = "SELECT unnest(ids) AS id FROM tickwright.poll_done WHERE due_at = $1 AND partner_no = $2"
    return Counter(row["id"] for row in await pool.fetch(sql, trackers.due_at, trackers.partner_no))


async def events(pool: Pool) -> list[Mapping[str, Any]]:
    """Return the messages in the outbox for the topic of poll events."""
    rows = await pool.fetch("SELECT payload FROM tickwright.outbox WHERE destination = $1 ORDER BY id", EVENTS_TO)
    return [json.loads(row["payload"]) for row in rows]


async def all_done(pool: Pool, trackers: Trackers) -> bool:
    """Whether the ledger has every poll."""
    return set(await done_times(pool, trackers)) == set(trackers.ids)


async def queue_empty(pool: Pool) -> bool:
    """Whether no poll waits or is owned."""
    return bool(await pool.fetchval("SELECT NOT EXISTS (SELECT FROM tickwright.poll_queue)"))


async def slice_of(pool: Pool, trackers: Trackers) -> Mapping[str, int]:
    """Return the slice ledger's row."""
    sql = """SELECT polled, late, superseded, selected FROM tickwright.poll_slices
              WHERE due_at = date_trunc('minute', $1::timestamptz) AND slot_id = $2 AND partner_no = $3"""
    return dict(await pool.fetchrow(sql, trackers.due_at, trackers.slot_id, trackers.partner_no))


# ---------------------------------------------------------------------- consumers


@dataclass
class Consumer:
    """A running consumer."""

    pool: Pool
    session: WorkerSession
    contract: PartnerContract
    consumer: PollConsumer
    heart: "asyncio.Task[None]"
    life: "asyncio.Task[None]"
    """The task that runs the consumer."""


def http_couriers(made: list[HttpCourier]) -> Any:
    """Return a factory of couriers for partners without a function; ``made`` collects them, to be closed."""
    found: dict[str, HttpCourier] = {}

    def of(name: str, settings: PartnerSettings) -> HttpCourier | None:
        if name not in found and settings.http is not None:
            problems: list[str] = []
            terms = read_http(settings.http, problems, where=name, secrets=lambda _: "secret")
            assert terms is not None, problems
            found[name] = HttpCourier(terms, allow=AllowList.parse("127.0.0.1"), connections_max=100)
            made.append(found[name])
        return found.get(name)

    return of


@asynccontextmanager
async def running_consumer(
    url: str,
    *,
    functions: Mapping[str, Function] | None = None,
    terms: LeaseTerms = TERMS,
    calls_max: int = 50,
    probe: Probe = NO_PROBE,
    source_of: Callable[[Pool, WorkerSession], PollSource] = QueueSource,
    group: str | None = None,
) -> AsyncIterator[Consumer]:
    """Run a consumer in this process; partners without a function are called by HTTP. Stop it in two steps."""
    pool = await open_pool(url, max_size=6)
    session = WorkerSession(pool, name="test", roles=["poll-consumer"], version="0", terms=terms)
    session.on_reclaim(reclaim)
    await session.open()
    contract = PartnerContract(pool, session)
    made: list[HttpCourier] = []
    of = http_couriers(made)
    given = functions or {}
    source = source_of(pool, session)
    consumer = PollConsumer(
        pool,
        session,
        QueueBesideLog(QueueSource(pool, session), source, Turns(lambda: None))
        if isinstance(source, KafkaPollSource)
        else source,
        contract,
        lambda name, settings: given.get(name) or of(name, settings),
        destination=EVENTS_TO,
        calls_max=calls_max,
        group=group,
        probe=probe,
    )
    feeding = [source] if isinstance(source, KafkaPollSource) else []
    services: list[Service] = [session, contract, *feeding, consumer]
    tasks = [asyncio.create_task(service.run()) for service in services]
    try:
        await eventually_async(lambda: consumer.last_tick_age_s() is not None)
        yield Consumer(pool, session, contract, consumer, tasks[0], tasks[-1])
    finally:
        for service in reversed(services):
            await service.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        for courier in made:
            await courier.aclose()
        await asyncio.wait_for(pool.close(), 10)


class ConsumerProcess:
    """A consumer as a separate process, running ``kit/consumer_process.py``."""

    def __init__(
        self,
        url: str,
        log: Path,
        *,
        lease_s: float = 2.0,
        kill_at: str = "",
        times: int = 1,
        kafka: tuple[str, str] = ("", ""),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        variables = {
            "CONSUMER_URL": url,
            "CONSUMER_LEASE_S": str(lease_s),
            "CONSUMER_KILL_AT": kill_at,
            "CONSUMER_KILL_TIMES": str(times),
            "CONSUMER_KAFKA": kafka[0],
            "CONSUMER_KAFKA_PREFIX": kafka[1],
        }
        script = Path(__file__).with_name("consumer_process.py")
        self.process = spawn([sys.executable, str(script)], log, {**variables, **(environment or {})})

    def kill9(self) -> None:
        """``kill -9`` it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def pause(self) -> None:
        """Stop it with SIGSTOP, like a frozen virtual machine."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a stopped one continue."""
        self.process.send_signal(signal.SIGCONT)


def instant(text: str) -> datetime:
    """Return an instant in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
