"""One call of a module's function: within its time, and within the limits of the partner that it goes to."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import structlog

from tickwright.capabilities.fanout.consumer.snapshot import Known
from tickwright.capabilities.fanout.handlers import EntityTask, Handler
from tickwright.capabilities.fanout.messages import Task
from tickwright.domain.references import HandedOut, Secrets
from tickwright.domain.secret_hosts import Destination, SecretsFor
from tickwright.partners import Answered, Failed, PartnerContract, Permit, Throttled
from tickwright.partners.outcomes import raised, returned
from tickwright.ports.fanout import TIMED_OUT, Begun
from tickwright.ports.ids import monotonic
from tickwright.ports.service import ends_task, take_cancels_back

PERMIT_S = 1.0
WAITING_SHARE = 4

Outcome: TypeAlias = Answered | Failed | Throttled

_log = structlog.get_logger("tickwright.fanout")


@dataclass(frozen=True, slots=True)
class Called:
    """What became of a call, and how long it took; both are ``None`` where the partner's limits let none through."""

    outcome: Outcome | None
    lasted_s: float | None = None

    @property
    def error(self) -> str | None:
        """Why it failed."""
        return self.outcome.reason if isinstance(self.outcome, Failed) else None

    @property
    def released(self) -> bool:
        """Whether it counts as not begun: there was no call, or the partner asked for silence."""
        return self.outcome is None or isinstance(self.outcome, Throttled)


class Caller:
    """Calls functions, and tells the partner contract what became of it.

    Args:
        contract: Of this process: the same object that polls of trackers keep to.
        slots: Messages at once; at most a quarter of them wait for the permits of one partner.
        secrets: Where ``${env:NAME}`` is found, for the hosts that a party names.
    """

    def __init__(self, contract: PartnerContract, *, slots: int, secrets: SecretsFor) -> None:
        self._contract, self._secrets = contract, secrets
        self._waiting_max = max(1, slots // WAITING_SHARE)
        self._waiting: Counter[str] = Counter()

    async def call(self, function: Handler, task: Task, begun: Begun, known: Known) -> Called:
        """Call ``function`` with the task, as the partner allows it; one that is not known here allows nothing."""
        if task.partner is None:
            return await self._ask(function, task, begun)
        number = known.partners.get(task.partner)
        permit = None if number is None else await self._permit(task.partner, number)
        if permit is None:
            return Called(None)
        try:
            called = await self._ask(function, task, begun)
        except BaseException:
            permit.close(None)
            raise
        permit.close(called.outcome)
        return called

    async def _permit(self, partner: str, number: int) -> Permit | None:
        """Wait for a permit, a second and two exchanges at most, and in some slots only: they are for others, too."""
        if self._waiting[partner] >= self._waiting_max:
            return None
        self._waiting[partner] += 1
        try:
            async with asyncio.timeout(PERMIT_S + self._contract.reach_s):
                return await self._contract.acquire(number, partner)
        except TimeoutError:
            return None
        finally:
            self._waiting[partner] -= 1

    async def _ask(self, function: Handler, task: Task, begun: Begun) -> Called:
        begun_s = monotonic()
        outcome = await self._outcome_of(function, task, begun)
        return Called(outcome, monotonic() - begun_s)

    async def _outcome_of(self, function: Handler, task: Task, begun: Begun) -> Outcome:
        """Call it; what it says of its failure is kept and logged, so the secrets that it was given are taken out."""
        secrets = HandedOut(self._secrets(()))

        def bound_to(destinations: Sequence[Destination]) -> Secrets:
            find = self._secrets(destinations)
            return lambda name: secrets.remember(find(name))

        try:
            async with asyncio.timeout(task.timeout_s) as limit:
                result = await function(_entity_task(task, begun, bound_to))
        except TimeoutError as error:
            return Failed(TIMED_OUT) if limit.expired() else _raised(task, error, secrets)
        except BaseException as error:  # the user's function: whatever it raises is a failed run
            if ends_task(error):
                raise
            return _raised(task, error, secrets)
        finally:
            await take_cancels_back()
        return Failed(TIMED_OUT) if limit.expired() else returned(result, secrets.mask)


def _raised(task: Task, error: BaseException, secrets: HandedOut) -> Failed:
    failed = raised(error, secrets.mask)
    _log.warning("fanout.function_raised", task=task.id, error=failed.reason)
    return failed


def _entity_task(task: Task, begun: Begun, secrets: SecretsFor) -> EntityTask:
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
