"""The plugin of named sources: databases and files that reports and audiences read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ClassVar

from tickwright.plugin import Context, Plugin
from tickwright.plugin.settings import environment_secret
from tickwright.ports.batches import AudienceFile, AudienceFiles, FileFacts
from tickwright.ports.objects import LazyObjectStore, ObjectStore, WorkFolder

if TYPE_CHECKING:
    from tickwright.sources.named import Sources
    from tickwright.sources.object_files import ObjectFiles


class LazyFiles:
    """A :class:`tickwright.ports.batches.AudienceFiles` that makes its folder at the first file."""

    def __init__(self, objects: ObjectStore, folder: WorkFolder) -> None:
        self._objects, self._folder = objects, folder
        self._files: ObjectFiles | None = None

    @asynccontextmanager
    async def open(self, key: str, order: str, expected: FileFacts | None) -> AsyncIterator[AudienceFile]:
        """Fetch the object unless it is here, and yield it for the block."""
        if self._files is None:
            from tickwright.sources.object_files import ObjectFiles

            self._files = ObjectFiles(self._objects, await self._folder.opened())
        async with self._files.open(key, order, expected) as file:
            yield file

    async def aclose(self) -> None:
        """Remove fetched files."""
        if self._files is not None:
            await self._files.aclose()


class SourcesPlugin(Plugin):
    """Provides the sources of the TOML file, ``[sources.NAME]``."""

    name = "sources"
    config_checks: ClassVar = {"sources": "tickwright.sources.named:read_source"}

    def provide(self, context: Context) -> None:
        """Offer the sources and audience files; each is opened at its first use."""

        def make() -> "Sources":
            from tickwright.sources.named import Sources, read_source

            read = {name: read_source(name, table, [], where=name) for name, table in context.tables("sources").items()}
            terms = {name: one for name, one in read.items() if one is not None}
            sources = Sources(terms, environment_secret, context.ports.get(WorkFolder).path)
            context.ports.on_close(sources.aclose)
            return sources

        def files() -> AudienceFiles:
            made = LazyFiles(context.ports.get(LazyObjectStore), context.ports.get(WorkFolder))
            context.ports.on_close(made.aclose)
            return made

        context.ports.offer("tickwright.sources.named:Sources", make)
        context.ports.offer(AudienceFiles, files)


PLUGIN = SourcesPlugin()
