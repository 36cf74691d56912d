"""A real process's roles in the test's own process, from a TOML file as a user writes it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from tickwright.app.declarations import Declarations
from tickwright.plugin.settings import Bind, Settings
from tickwright.process.node import Node, open_node


def settings_of(url: str, folder: Path, config: str, **more: Any) -> Settings:
    """Return settings of a process with this TOML file, any free ports, and files in a folder."""
    path = folder / "tickwright.toml"
    path.write_text(config)
    anywhere = Bind("127.0.0.1", 0)
    return Settings(
        database_url=SecretStr(url), home=folder, config=path, metrics_bind=anywhere, api_bind=anywhere, **more
    )


@asynccontextmanager
async def running(settings: Settings, program: Declarations, *roles: str) -> AsyncIterator[Node]:
    """Run a process's roles for the length of the block."""
    async with open_node(settings, roles, registrations=program.registrations, any_port=True) as node:
        work = asyncio.create_task(node.run(signals=False))
        try:
            yield node
        finally:
            node.supervisor.request()
            await work
