"""The services of one role in the test's own process, in the order of their start."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from tickwright.ports.service import Service


@dataclass(kw_only=True)
class RoleProcess:
    """What a process of the role would run."""

    services: Sequence[Service]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def begin(self) -> None:
        """Run every one of them."""
        self.tasks = [asyncio.create_task(service.run()) for service in self.services]

    async def stop(self) -> None:
        """Stop everything in order, as a deploy does."""
        for service in reversed(self.services):
            await service.quiesce()
        for service in reversed(self.services):
            await service.stop()
        await asyncio.wait(self.tasks)
        for task in self.tasks:
            task.result()
