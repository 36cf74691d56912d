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
    from tickwright.capabilities.jobs.schedules.service import Schedules
    from tickwright.plugin import Registrations

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


async def store_declared(schedules: "Schedules", registrations: "Registrations") -> None:
    """Store the program's schedules unless an operator or a file has set them.

    A schedule that is not declared any more stays as it is: another program, or an older process of a deploy that is
    under way, may declare it. An operator deletes it.
    """
    for declared in registrations.of(ScheduleRegistry).all():
        await schedules.store(declared.name, declared.definition, caller=PROGRAM, set_by="app")


async def store_file(schedules: "Schedules", tables: Mapping[str, Any], path: object) -> None:
    """Store the schedules of the TOML file at ``path``, whose tables have passed the checks."""
    actor = Caller(f"config:{path}", CONFIG_FILE.role)
    for name, table in tables.items():
        stored = await schedules.store(name, definition_of(table), caller=actor)
        _log.info("schedule.set", name=name, file=str(path), created=stored.created)
