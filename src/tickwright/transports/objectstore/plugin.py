"""The plugin of the object store, and of the folder in which one process spools rows."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

from tickwright.plugin import Context, Ownership, Plugin, Settings, SettingsPart
from tickwright.plugin.settings import text
from tickwright.ports.objects import LazyObjectStore, ObjectStore, WorkFolder
from tickwright.transports.objectstore.locations import parse_place

FOLDER = "objects"
"""Below ``home``, where no other place is given."""
OWNER_KEY = "installation"


class ObjectStoreSettings(SettingsPart):
    """Where files are kept.

    Attributes:
        object_store: Where reports' files are kept: ``file:///FOLDER``, ``s3://BUCKET/PREFIX`` or
            ``gs://BUCKET/PREFIX``; without it the folder ``objects`` in ``home``. Credentials are named as usual
            (``AWS_ACCESS_KEY_ID``, ...).
        report_folder: Where rows are spooled and merged; ``reports`` in ``home`` by default.
    """

    object_store: Annotated[str | None, text(parse_place, keep=True)] = None
    report_folder: Path | None = None


def objects_url(settings: Settings) -> str:
    """Return where files are kept; never with a password, fit for logs and terminals."""
    return settings.part(ObjectStoreSettings).object_store or (settings.home_folder / FOLDER).as_uri()


def work_place(settings: Settings) -> Path:
    """Return where the work folders of all processes are; what has no owner there is removed."""
    return (settings.part(ObjectStoreSettings).report_folder or settings.home_folder / "reports") / "work"


class ObjectStorePlugin(Plugin):
    """Provides the object store, and a folder of this process's own."""

    name = "objectstore"
    settings = ObjectStoreSettings

    def provide(self, context: Context) -> None:
        """Offer the store and the folder."""
        from tickwright.transports.objectstore.opening import LazyObjects
        from tickwright.transports.objectstore.work_folder import LazyFolder

        ports, settings = context.ports, context.settings

        def objects() -> LazyObjectStore:
            store = LazyObjects(objects_url(settings), os.environ)
            ports.on_close(store.aclose)
            return store

        def folder() -> WorkFolder:
            made = LazyFolder(work_place(settings))
            ports.on_close(made.aclose)
            return made

        ports.offer(LazyObjectStore, objects)
        ports.offer(WorkFolder, folder)

    def ownerships(self, context: Context) -> Sequence[Ownership]:
        """Return the place of files. The default folder is only reported: two programs of one user share it."""
        settings = context.settings
        is_default = settings.part(ObjectStoreSettings).object_store is None
        return (
            Ownership(
                place="the object store",
                roles=frozenset({"scheduler", "report-listener"}),
                prefix=objects_url(settings),
                setting="TICKWRIGHT_OBJECT_STORE",
                mark=f"the object {OWNER_KEY}",
                claim=lambda installation: _claim(context.ports.get(LazyObjectStore), installation),
                is_shared=is_default,
                asks_twice=True,
            ),
        )


async def _claim(objects: ObjectStore, installation: str) -> str:
    """Write the mark where there is none, and return the one that counts.

    Not every store can write only where nothing is, so two processes that write at once may each read their own mark.
    The last write counts; the next question tells the other process.
    """
    if await objects.size(OWNER_KEY) is None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(installation.encode())
            file.flush()
            await objects.put_file(OWNER_KEY, Path(file.name))
    pieces = objects.read(OWNER_KEY)  # the first piece holds the whole mark
    async with aclosing(pieces):  # type: ignore[type-var]  # stores give generators
        return (await anext(pieces, b"")).decode(errors="replace").strip()


PLUGIN = ObjectStorePlugin()
