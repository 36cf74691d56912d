"""The plugin of the object store and of this process's work folder."""

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
"""The default folder of objects, below ``home``."""
OWNER_KEY = "installation"


class ObjectStoreSettings(SettingsPart):
    """Settings of the object store.

    Attributes:
        object_store: Where report files are kept: ``file:///FOLDER``, ``s3://BUCKET/PREFIX`` or ``gs://BUCKET/PREFIX``.
            Default: the folder ``objects`` in ``home``. Credentials come from the usual variables
            (``AWS_ACCESS_KEY_ID``, ...).
        report_folder: Where rows are spooled and merged. Default: ``reports`` in ``home``.
    """

    object_store: Annotated[str | None, text(parse_place, keep=True)] = None
    report_folder: Path | None = None


def objects_url(settings: Settings) -> str:
    """Return the URL of the object store. It has no password, so it may be logged."""
    return settings.part(ObjectStoreSettings).object_store or (settings.home_folder / FOLDER).as_uri()


def work_place(settings: Settings) -> Path:
    """Return the folder of all work folders. Folders there without an owner are removed."""
    return (settings.part(ObjectStoreSettings).report_folder or settings.home_folder / "reports") / "work"


class ObjectStorePlugin(Plugin):
    """Provides the object store and this process's work folder."""

    name = "objectstore"
    settings = ObjectStoreSettings

    def provide(self, context: Context) -> None:
        """Offer both ports."""
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
        """Return the ownership of the object store. The default folder is only reported: a user's programs share it."""
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
    """Write the mark if it is missing, and return the mark that counts.

    Not every store has a conditional write, so two processes that write at once may each read their own mark. The last
    write counts; the next check reveals it to the other process.
    """
    if await objects.size(OWNER_KEY) is None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(installation.encode())
            file.flush()
            await objects.put_file(OWNER_KEY, Path(file.name))
    pieces = objects.read(OWNER_KEY)  # the first piece holds the whole mark
    async with aclosing(pieces):  # type: ignore[type-var]  # stores return generators
        return (await anext(pieces, b"")).decode(errors="replace").strip()


PLUGIN = ObjectStorePlugin()
