"""What programs and files declare: a registry of schedules, and how they become rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from tickwright.capabilities.jobs.schedules.definition import Definition, definition_of, read_schedule
from tickwright.domain.errors import Rejected
from tickwright.engine.registry import Registry
from tickwright.plugin.contract import CONFIG_FILE, PROGRAM
from tickwright.ports.caller import Caller

if TYPE_CHECKING:
    from tickwright.plugin import Context

_SPELLED = {"timezone": "time_zone"}
"""Options whose name in Python is another one."""
_log = structlog.get_logger("tickwright.schedules")


@dataclass(frozen=True, slots=True)
class DeclaredSchedule:
    """A schedule of a program."""

    name: str
    definition: Definition


def declare_schedule(name: str, task_type: str, options: Mapping[str, Any]) -> DeclaredSchedule:
    """Return the schedule of ``app.periodic`` or of ``@app.job`` with times.

    Raises:
        Rejected: ``invalid_schedule`` with every mistake, or the code of the only one. Permanent.
    """
    named = {_SPELLED.get(option, option): value for option, value in options.items()}
    problems: list[str] = []
    where = f"schedule {name!r}"
    definition = read_schedule(name, {**named, "task_type": task_type}, problems, where=where)
    if definition is None or problems:
        raise Rejected("invalid_schedule", "\n".join(problems), problems=problems)
    return DeclaredSchedule(name, definition)


class ScheduleRegistry(Registry[DeclaredSchedule]):
    """The schedules of one program, by name."""

    kind = "schedule"


async def declare_schedules(context: "Context") -> None:
    """Store the program's schedules unless an operator has set them, and those of the TOML file.

    A schedule that is not declared any more stays as it is: another program, or an older process of a deploy that is
    under way, may declare it. An operator deletes it.
    """
    from tickwright.capabilities.jobs.schedules.service import Schedules

    schedules = context.ports.get(Schedules)
    for declared in context.registrations.of(ScheduleRegistry).all():
        await schedules.store(declared.name, declared.definition, caller=PROGRAM, set_by="app")
    actor = Caller(f"config:{context.settings.config}", CONFIG_FILE.role)
    for name, table in context.tables("schedules").items():
        stored = await schedules.store(name, definition_of(table), caller=actor)
        _log.info("schedule.set", name=name, file=str(context.settings.config), created=stored.created)
