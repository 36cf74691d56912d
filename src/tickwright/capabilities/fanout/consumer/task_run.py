"""One call of a module's function: within its timeout, its partner's limits and its entity's share of the slots."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import structlog

from tickwright.capabilities.fanout.consumer.snapshot import ConsumerSnapshot
from tickwright.capabilities.fanout.handlers import EntityTask, Handler
from tickwright.capabilities.fanout.messages import Task
from tickwright.domain.secrets import Destination, ResolvedSecrets, Secrets, SecretsFor
from tickwright.engine.remote.calls import Postponed
from tickwright.engine.tasks import is_final_cancel, take_cancels_back
from tickwright.partners.contract import PartnerContract
from tickwright.partners.outcomes import Answered, Failed, Throttled, raised, returned
from tickwright.partners.permits import Permit
from tickwright.ports.fanout import TIMED_OUT, RunClaim
from tickwright.ports.ids import monotonic

_log = structlog.get_logger("tickwright.fanout")

PERMIT_S = 1.0
WAITING_SHARE = 4

Outcome: TypeAlias = Answered | Failed | Throttled | Postponed


@dataclass(frozen=True, slots=True)
class CallResult:
    """The outcome and the duration of a call; both are ``None`` when the partner's limits allowed none."""

    outcome: Outcome | None
    lasted_s: float | None = None

    @property
    def error(self) -> str | None:
        """Why it failed."""
        return self.outcome.reason if isinstance(self.outcome, Failed) else None

    @property
    def released(self) -> bool:
        """Whether it counts as not begun: there was no call, or the partner requested silence."""
        return self.outcome is None or isinstance(self.outcome, Throttled | Postponed)


class TaskRunner:
    """Calls functions, and reports the outcomes to the partner contract.

    Args:
        contract: Of this process, shared with the polls of trackers.
        slots: Messages at once; at most a quarter of them wait for the permits of one partner.
        secrets: Resolves ``${env:NAME}`` for the hosts that a party names.
    """

    def __init__(self, contract: PartnerContract, *, slots: int, secrets: SecretsFor) -> None:
        self._contract, self._secrets = contract, secrets
        self._waiting_max = max(1, slots // WAITING_SHARE)
        self._waiting: Counter[str] = Counter()

    async def run(self, function: Handler, task: Task, begun: RunClaim, snapshot: ConsumerSnapshot) -> CallResult:
        """Call ``function`` within its partner's limits; without the partner in the snapshot no call is made."""
        if task.partner is None:
            return await self._timed_call(function, task, begun)
        number = snapshot.partners.get(task.partner)
        permit = None if number is None else await self._permit(task.partner, number)
        if permit is None:
            return CallResult(None)
        try:
            called = await self._timed_call(function, task, begun)
        except BaseException:
            permit.close(None)
            raise
        permit.close(None if isinstance(called.outcome, Postponed) else called.outcome)
        return called

    async def _permit(self, partner: str, number: int) -> Permit | None:
        """Wait for a permit, a second and two exchanges at most, in some slots only: other partners need slots, too."""
        if self._waiting[partner] >= self._waiting_max:
            return None
        self._waiting[partner] += 1
        try:
            async with asyncio.timeout(PERMIT_S + self._contract.reach_s):
                return await self._contract.permits_of(number, partner).acquire()
        except TimeoutError:
            return None
        finally:
            self._waiting[partner] -= 1

    async def _timed_call(self, function: Handler, task: Task, begun: RunClaim) -> CallResult:
        begun_s = monotonic()
        outcome = await self._call(function, task, begun)
        return CallResult(outcome, monotonic() - begun_s)

    async def _call(self, function: Handler, task: Task, begun: RunClaim) -> Outcome:
        """Call it. Secrets that the function was given are masked in a failure's text, which is stored and logged."""
        secrets = ResolvedSecrets(self._secrets(()))

        def bound_to(destinations: Sequence[Destination]) -> Secrets:
            find = self._secrets(destinations)
            return lambda name: secrets.remember(find(name))

        try:
            limit_s = None if getattr(function, "own_timeout", False) else task.timeout_s
            async with asyncio.timeout(limit_s) as limit:
                result = await function(_entity_task(task, begun, bound_to))
        except TimeoutError as error:
            return Failed(TIMED_OUT) if limit.expired() else _raised(task, error, secrets)
        except BaseException as error:  # any exception of the user's function is a failed run
            if is_final_cancel(error):
                raise
            return _raised(task, error, secrets)
        finally:
            await take_cancels_back()
        if isinstance(result, Postponed):
            return result
        return Failed(TIMED_OUT) if limit.expired() else returned(result, secrets.mask)


def _raised(task: Task, error: BaseException, secrets: ResolvedSecrets) -> Failed:
    failed = raised(error, secrets.mask)
    _log.warning("fanout.function_raised", task=task.id, error=failed.reason)
    return failed


def _entity_task(task: Task, begun: RunClaim, secrets: SecretsFor) -> EntityTask:
    last_s = task.last_success_s if begun.last_success_s is None else begun.last_success_s
    return EntityTask(
        id=task.id,
        entity_code=task.entity_code,
        task_type=task.task_type,
        party=task.party,
        last_executed_at=None if last_s is None else datetime.fromtimestamp(last_s, UTC),
        window_at=datetime.fromtimestamp(task.window.start_s, UTC),
        drop_dead_at=datetime.fromtimestamp(task.window.end_s, UTC),
        timeout=timedelta(seconds=task.timeout_s),
        config_version=task.config_version,
        fence=begun.fence,
        secrets=secrets,
    )


# Slow entities. An entity is slow for a module while one of its last runs took half of its timeout or more, or timed
# out. Its next run needs one of the slow slots; all other slots are for entities that are not slow. ``QUICK_RUNS``
# quick runs in a row end it, so an entity that hangs every second or third time is always slow.

SLOW_PART = 0.5
SLOW_MAX = 10_000
QUICK_RUNS = 5

Key: TypeAlias = tuple[str, str]


def timed_out_lately(since_timeout_s: float | None, window_s: int) -> bool:
    """Return whether one of the last runs timed out, by its instant in the ledger, which does not count later runs."""
    return since_timeout_s is not None and 0 <= since_timeout_s < QUICK_RUNS * window_s


class SlotUse:
    """One message's use of a slot."""

    __slots__ = ("_key", "_share", "holds_slow_slot")

    def __init__(self, share: "SlowShare", key: Key) -> None:
        self._share, self._key, self.holds_slow_slot = share, key, False

    def try_take(self, *, timed_out: bool = False) -> bool:
        """Return whether its entity may run now; a slow one takes a slow slot, and may not run when all are taken.

        Args:
            timed_out: By the ledger: one of its last runs, perhaps in another process, timed out.
        """
        if timed_out:
            self._share.mark_timed_out(self._key)
        if not self.holds_slow_slot and self._share.is_slow(self._key):
            self.holds_slow_slot = self._share.running < self._share.most
            self._share.running += self.holds_slow_slot
            return self.holds_slow_slot
        return True

    def ran(self, lasted_s: float, timeout_s: float) -> None:
        """Note how long its run took."""
        self._share.note(self._key, is_slow=lasted_s >= SLOW_PART * timeout_s)


class SlowShare:
    """Slow entities, and their share of the slots; one for a consumer.

    Args:
        slots: Of the process.
        percent: Of the slots that slow entities hold at most, rounded down; at least one slot.

    Attributes:
        most: Slow slots.
        running: Those that are taken.

    Invariants:
        FAN-10: no more than ``most`` slots run tasks of entities that were known to be slow when they began.
    """

    def __init__(self, slots: int, percent: int) -> None:
        self.most = max(1, slots * percent // 100)
        self.running = 0
        self._slow: dict[Key, int] = {}

    @contextmanager
    def slot(self, entity_code: str, task_type: str) -> Iterator[SlotUse]:
        """Return one message's use of its slot, which ends with the body."""
        use = SlotUse(self, (entity_code, task_type))
        try:
            yield use
        finally:
            self.running -= use.holds_slow_slot

    def note(self, key: Key, *, is_slow: bool) -> None:
        """Note a run. Only the newest slow entities are kept; a dropped one is noted again at its next slow run."""
        quick_left = QUICK_RUNS if is_slow else self._slow.get(key, 0) - 1
        self._slow.pop(key, None)
        if quick_left > 0:
            self._keep(key, quick_left)

    def mark_timed_out(self, key: Key) -> None:
        """Note a timeout in the ledger, which reports it with each claim for as long as it counts."""
        if key not in self._slow:
            self._keep(key, 1)

    def _keep(self, key: Key, quick_left: int) -> None:
        self._slow[key] = quick_left
        if len(self._slow) > SLOW_MAX:
            del self._slow[next(iter(self._slow))]

    def is_slow(self, key: Key) -> bool:
        """Return whether this entity is slow for this module."""
        return key in self._slow

    @property
    def entities(self) -> list[Key]:
        """Entities and modules that are slow, the latest last."""
        return list(self._slow)
