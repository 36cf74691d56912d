"""What the API and the command line need of campaigns beside the database; opened when it is first needed.

A definition is checked against its source and a dry run counts there, so whoever edits campaigns needs the sources that
their consumers have. Everybody else needs none of it, and reads no TOML file for it.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.ports.audiences import AudienceFile, FileFacts
from tickwright.ports.objects import ObjectStore
from tickwright.ports.reports import Source
from tickwright.process.configfile import load_config
from tickwright.process.settings import Settings, secret
from tickwright.sources.named import Sources

if TYPE_CHECKING:
    from tickwright.sources.object_files import ObjectFiles


class LazySources:
    """A :class:`tickwright.ports.audiences.SourceBook` that reads the TOML file when it is first asked."""

    def __init__(self, settings: Settings, folder: Callable[[], Path]) -> None:
        self._settings, self._folder = settings, folder
        self._sources: Sources | None = None

    def get(self, name: str) -> Source:
        """Return the source of that name."""
        if self._sources is None:
            self._sources = Sources(load_config(self._settings.config).sources, secret, self._folder)
        return self._sources.get(name)

    async def aclose(self) -> None:
        """Close what was opened."""
        if self._sources is not None:
            await self._sources.aclose()


class LazyFiles:
    """A :class:`tickwright.ports.audiences.AudienceFiles` whose folder and library come with its first file."""

    def __init__(self, objects: ObjectStore, folder: Callable[[], Path]) -> None:
        self._objects, self._folder = objects, folder
        self._files: ObjectFiles | None = None

    @asynccontextmanager
    async def open(self, key: str, order: str, expected: FileFacts | None) -> AsyncIterator[AudienceFile]:
        """Fetch the object, unless it is here, and give it for the length of the block."""
        if self._files is None:
            from tickwright.sources.object_files import ObjectFiles

            self._files = ObjectFiles(self._objects, self._folder())
        async with self._files.open(key, order, expected) as file:
            yield file

    async def aclose(self) -> None:
        """Remove what was fetched."""
        if self._files is not None:
            await self._files.aclose()


class CampaignDesk:
    """One process's; closed with its link.

    Args:
        objects: The object store.
        folder: Makes the process's own folder, and returns it.
    """

    def __init__(self, settings: Settings, objects: ObjectStore, folder: Callable[[], Path]) -> None:
        self._sources, self._files = LazySources(settings, folder), LazyFiles(objects, folder)
        self.audiences = Audiences(self._sources, self._files)

    async def aclose(self) -> None:
        """Close what was opened."""
        await self._files.aclose()
        await self._sources.aclose()
