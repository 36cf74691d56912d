"""The decorator of batches, and what all decorators fill."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar

from tickwright.app.declare import Duration, declare_batch
from tickwright.capabilities.batches.definitions.programs import Function, Plan
from tickwright.process.registry import Brought

B = TypeVar("B", bound=Function)


class BatchDeclarations:
    """The decorator of batches."""

    def __init__(self) -> None:
        self.brought = Brought()

    def batch(
        self,
        name: str,
        *,
        audience: Mapping[str, Any] | None = None,
        plan: Plan | None = None,
        action: str | None = None,
        release: Literal["finished", "chunk"] | None = None,
        cron: str | None = None,
        date_time_execution: datetime | str | None = None,
        time_zone: str | None = None,
        restartable: bool | None = None,
        restartable_unit: int | None = None,
        restartable_unit_type: Literal["MINUTES", "HOURS", "DAYS", "WEEKS", "MONTHS"] | None = None,
        overlap: Literal["skip", "queue", "replace"] | None = None,
        misfire: Literal["one", "all", "none"] | None = None,
        misfire_max: int | None = None,
        misfire_grace: Duration | None = None,
        chunk_rows: int | None = None,
        rate: str | None = None,
        attempts: int | None = None,
        on_finished: str | None = None,
    ) -> Callable[[B], B]:
        """Register the decorated function as the work of the batch ``name``: imports, exports, reconciliations.

        An execution is made when the batch is due, cut into chunks, and worked by any number of consumers, each chunk
        once: the function takes a :class:`~tickwright.BatchChunk`. A killed process costs its open chunks and nothing
        else. With a time to run at the batch is scheduled when it is first registered; without one it is started by
        hand. What is given here counts where nobody has set the batch up by hand.

        Args:
            name: 1 to 100 letters, digits, ``_ . -``.
            audience: Whose members are cut into chunks: ``{"source": …, "table": …, "key": …, "fields": {…}}``.
            plan: Instead of ``audience``: an ``async def`` that takes the :class:`~tickwright.BatchRun` and yields a
                JSON value per chunk. Without both the batch is one chunk.
            action: Where what ``chunk.act`` records goes: a destination, or ``python:NAME``, a job per record.
            release: When it goes: behind the whole execution (``finished``), or behind its chunk.
            cron: Five fields, such as ``"0 3 * * *"``.
            date_time_execution: The first run; in ``time_zone`` where it has no offset of its own.
            time_zone: Of both; ``UTC`` by default.
            restartable: Again every so many units after the first run.
            restartable_unit: How many.
            restartable_unit_type: Of what.
            overlap: What becomes of an occurrence while an execution is open; ``skip`` by default.
            misfire: What becomes of occurrences that were missed: the newest of them, all, or none.
            misfire_max: Of ``all``: the newest so many, 1 to 1,000.
            misfire_grace: Up to so late is not missed; 1 min by default.
            chunk_rows: Members per chunk, 100 to 100,000; 5,000 by default.
            rate: Members of all consumers together, such as ``"1000/s"``.
            attempts: Of one chunk, 1 to 100; 10 by default.
            on_finished: A destination that hears of the end, finished or failed.

        Raises:
            Rejected: ``invalid_batch`` with every mistake, ``duplicate_batch``. Permanent.
        """
        options = {
            "audience": audience,
            "action": action,
            "release": release,
            "cron": cron,
            "date_time_execution": date_time_execution,
            "time_zone": time_zone,
            "restartable": restartable,
            "restartable_unit": restartable_unit,
            "restartable_unit_type": restartable_unit_type,
            "overlap": overlap,
            "misfire": misfire,
            "misfire_max": misfire_max,
            "misfire_grace": misfire_grace,
            "chunk_rows": chunk_rows,
            "rate": rate,
            "attempts": attempts,
            "on_finished": on_finished,
        }

        def register(function: B) -> B:
            self.brought.batches.add(declare_batch(name, function, plan, options))
            return function

        return register
