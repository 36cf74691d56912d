"""What workers in other languages do for a program, declared in Python: jobs, polls, tasks and chunks of a pool.

::

    billing = app.remote("billing")
    billing.job("invoice.remind", timeout="30s")
    billing.partner("acme", rate="50/s")
    billing.module("LOCATIONS", every="15m")
    billing.batch("ledger.export", cron="0 3 * * *")

The declarations are stored when a process of the program starts. What an operator or a file sets overrides them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from tickwright.app.declarations import JobTypeOptions
from tickwright.domain.errors import Rejected
from tickwright.domain.targets import remote_target
from tickwright.engine.remote.declared import DeclaredRemote, RemoteKind, RemoteRegistry


class RemotePool:
    """A pool of remote workers; see :meth:`tickwright.Tickwright.remote`.

    Every method raises ``Rejected``: ``duplicate_remote``, and ``invalid_task_type``, ``invalid_partner``,
    ``invalid_module`` or ``invalid_batch`` with every mistake. Permanent.
    """

    def __init__(self, registry: RemoteRegistry, pool: str) -> None:
        self._registry, self.target = registry, remote_target(f"remote:{pool}")

    def job(self, name: str, **settings: Unpack[JobTypeOptions]) -> None:
        """Declare a task type, with the options of ``@app.job`` except those of schedules."""
        from tickwright.capabilities.jobs.task_types import read_task_type

        where, problems = f"remote job {name!r}", list[str]()
        given = {option: value for option, value in settings.items() if value is not None}
        kind = read_task_type(name, {"target": self.target, **given}, problems, where=where)
        _check("invalid_task_type", problems)
        self._add("job", name, {"type": replace(kind, name=name)})

    def partner(self, name: str, **settings: Any) -> None:
        """Declare a partner whose trackers the pool polls, with the options of ``@app.partner``."""
        from tickwright.capabilities.polling.partners import read_partner

        problems, table = list[str](), {**settings, "target": self.target}
        read_partner(name, table, problems, where=f"remote partner {name!r}")
        _check("invalid_partner", problems)
        self._add("partner", name, table)

    def module(self, name: str, **settings: Any) -> None:
        """Declare a module whose tasks the pool runs, with the options of ``@app.module``."""
        from tickwright.capabilities.fanout.entities.modules import check_module

        table = {**settings, "target": self.target}
        check_module(name, table, where=f"remote module {name!r}")
        self._add("module", name, table)

    def batch(self, name: str, **settings: Any) -> None:
        """Declare a batch whose chunks the pool works on, with the options of ``@app.batch`` except ``plan``.

        ``timeout`` is the longest time for a chunk, 1 s to 6 h; 15 min by default.
        """
        from tickwright.capabilities.batches.definitions.batches import check_name
        from tickwright.capabilities.batches.definitions.schema import read_program

        table = {**settings, "target": self.target}
        check_name(name)
        read_program(table, lambda _: None)
        self._add("batch", name, table)

    def _add(self, kind: RemoteKind, name: str, settings: Mapping[str, Any]) -> None:
        self._registry.add(DeclaredRemote(kind, name, settings))


def _check(code: str, problems: list[str]) -> None:
    if problems:
        raise Rejected(code, "\n".join(problems), problems=problems)
