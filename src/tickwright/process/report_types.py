"""Report types in one process: what the program brings and what the TOML file says become rows."""

from collections.abc import Mapping
from typing import Any

from tickwright.capabilities.reports.handlers import ListenerRegistry, ReportRegistry, with_declared
from tickwright.capabilities.reports.types.report_types import ReportTypes
from tickwright.ports.caller import Caller, Role

_PROGRAM = Caller("python", Role.ADMIN)
_FILE = Caller("config", Role.ADMIN)


async def register_reports(
    types: ReportTypes,
    reports: ReportRegistry,
    listeners: ListenerRegistry,
    from_file: Mapping[str, Mapping[str, Any]],
) -> None:
    """Register what the program brings where nobody has set it up by hand, and set what the TOML file says.

    A program's report takes what the program says of its listeners; a file's does not, because processes without that
    program read the same file. What is so already is written nowhere, not even in the audit trail.

    Raises:
        Rejected: ``invalid_report_type``. Permanent.
    """
    for declared in reports.all():
        await types.declare(declared.name, with_declared(declared.table, listeners), caller=_PROGRAM)
    for name, table in from_file.items():
        await types.put(name, table, caller=_FILE)
