"""What the decorator's keyword arguments mean: the same words, checks and remedies as in the TOML file."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tickwright.capabilities.batches.definitions.program_schema import read_program
from tickwright.capabilities.batches.definitions.programs import DeclaredBatch, Plan
from tickwright.capabilities.batches.definitions.programs import Function as BatchFunction
from tickwright.capabilities.batches.definitions.schema import NAME as BATCH_NAME
from tickwright.capabilities.fanout.entities.modules import check_module
from tickwright.capabilities.fanout.handlers import DeclaredModule
from tickwright.capabilities.fanout.handlers import Handler as ModuleHandler
from tickwright.capabilities.jobs.handlers import Function, Handler, make_handler
from tickwright.capabilities.polling.consumer.courier import Courier, DeclaredPartner
from tickwright.capabilities.reports.handlers import DeclaredListener, DeclaredReport
from tickwright.capabilities.reports.handlers import Function as ListenerFunction
from tickwright.capabilities.reports.types.schema import check_definition, read_listener
from tickwright.domain.errors import Rejected
from tickwright.domain.functions import takes_one
from tickwright.process.configfile import Problems, read_duration, read_partner, read_task_type

Duration = str | timedelta
_HANDLER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,49}")


def declare_job(name: str, function: Function, options: Mapping[str, Any]) -> Handler:
    """Return the handler that ``@app.job(name, **options)`` makes of ``function``.

    Raises:
        Rejected: ``invalid_task_type`` with every mistake, or ``invalid_handler``. Permanent.
    """
    problems = Problems()
    table = {key: value for key, value in options.items() if value is not None}
    where = f"@app.job({name!r})"
    if not _HANDLER_NAME.fullmatch(name):
        problems.found.append(f"{where}: a handler's name has 1 to 50 letters, digits, '_', '.' or '-', a letter first")
    kind = read_task_type("handler", {"target": "python:handler", **table}, problems, where=where)
    kind = replace(kind, name=name, target=f"python:{name}")
    if problems.found:
        raise Rejected("invalid_task_type", "\n".join(problems.found), problems=problems.found)
    return make_handler(kind, function)


def declare_partner(name: str, function: Courier, options: Mapping[str, Any]) -> DeclaredPartner:
    """Return the partner that ``@app.partner(name, **options)`` makes of ``function``.

    Raises:
        Rejected: ``invalid_partner`` with every mistake. Permanent.
    """
    problems: list[str] = []
    table = {key: value for key, value in options.items() if value is not None}
    read_partner(name, table, problems, where=f"@app.partner({name!r})")
    if problems:
        raise Rejected("invalid_partner", "\n".join(problems), problems=problems)
    return DeclaredPartner(name, table, function)


def declare_module(name: str, function: ModuleHandler, options: Mapping[str, Any]) -> DeclaredModule:
    """Return the module that ``@app.module(name, **options)`` makes of ``function``.

    Raises:
        Rejected: ``invalid_module`` with every mistake. Permanent.
    """
    table = {key: value for key, value in options.items() if value is not None}
    check_module(name, table, where=f"@app.module({name!r})")
    return DeclaredModule(name, table, function)


def declare_listener(name: str, function: ListenerFunction, options: Mapping[str, Any]) -> DeclaredListener:
    """Return the listener that ``@app.listener(name, **options)`` makes of ``function``.

    Raises:
        Rejected: ``invalid_listener`` with every mistake. Permanent.
    """
    problems: list[str] = []
    table = {key: value for key, value in options.items() if value is not None}
    read = read_listener(name, table, problems, where=f"@app.listener({name!r})")
    if read is None:
        raise Rejected("invalid_listener", "\n".join(problems), problems=problems)
    return DeclaredListener(
        name,
        read.source,
        table.get("attempts"),
        read.timeout if "timeout" in table else None,
        read.columns if "columns" in table else None,
        function,
    )


def declare_report(name: str, function: Callable[[], str | None], options: Mapping[str, Any]) -> DeclaredReport:
    """Return the report type that ``@app.report(name, **options)`` makes of ``function``, which is called here, once.

    Raises:
        Rejected: ``invalid_report_type`` with every mistake that can be seen without DuckDB. Permanent.
    """
    where = f"@app.report({name!r})"
    if inspect.iscoroutinefunction(function) or inspect.signature(function).parameters:
        raise Rejected("invalid_report_type", f"{where}: the function takes nothing, is not async, and returns SQL")
    merge = function()
    given = {key: value for key, value in options.items() if value is not None}
    table = given if merge is None else {**given, "merge": merge}
    check_definition(name, table, where=where)
    return DeclaredReport(name, table)


def declare_batch(name: str, function: BatchFunction, plan: Plan | None, options: Mapping[str, Any]) -> DeclaredBatch:
    """Return the batch that ``@app.batch(name, **options)`` makes of ``function``.

    Raises:
        Rejected: ``invalid_batch``, or what all mistakes have for a code, with every mistake. Permanent.
    """
    where = f"@app.batch({name!r})"
    if not BATCH_NAME.fullmatch(name):
        text = f"{where}: a name has 1 to 100 letters, digits, '_', '.' or '-', a letter or digit first"
        raise Rejected("invalid_batch", text)
    if not inspect.iscoroutinefunction(function) or not takes_one(function):
        raise Rejected("invalid_batch", f"{where}: write an 'async def' that takes the chunk, and nothing else")
    words = {key: value for key, value in options.items() if value is not None}
    if plan is not None and "audience" in words:
        raise Rejected("invalid_batch", f"{where}: an audience or a plan, one of them")
    if plan is not None and not (inspect.isasyncgenfunction(plan) and takes_one(plan)):
        text = f"{where}: the plan is an 'async def' that takes the run and yields a value per chunk"
        raise Rejected("invalid_batch", text)
    return DeclaredBatch(name, read_program(words, lambda _: None), function, plan)


def as_duration(field: str, value: Duration | None) -> timedelta | None:
    """Return a duration that a caller gave as ``"30s"`` or as a ``timedelta``.

    Raises:
        Rejected: ``invalid_duration``. Permanent.
    """
    if value is None:
        return None
    try:
        duration = read_duration(value)
    except Rejected as error:
        message = error.message.removeprefix("duration: ")
        raise Rejected("invalid_duration", f"{field}: {message}", field=field) from None
    if duration < timedelta():
        raise Rejected("invalid_duration", f"{field}: zero or more", field=field)
    return duration
