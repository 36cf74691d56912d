"""The store of reports' files in one process, by what the settings say."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tickwright.ports.objects import ObjectStore
from tickwright.process.settings import Settings

FOLDER = "objects"
"""Below ``home``, where no other place is given."""


def objects_url(settings: Settings) -> str:
    """Return where files are kept; never with a password, fit for logs and terminals."""
    return settings.object_store or (settings.home_folder / FOLDER).as_uri()


@asynccontextmanager
async def open_objects(settings: Settings) -> AsyncIterator[ObjectStore]:
    """Open the store for the length of the block. A bucket is not asked for anything yet.

    Raises:
        Rejected: ``invalid_object_store``, its credentials or its endpoint are unusable, or ``object_store_refused``,
            the folder may not be written. Permanent until an operator acts.
        Unavailable: ``object_store_unavailable``, the folder's disk is full or fails. Retry.
    """
    from tickwright.transports.objectstore import open_store

    store = await asyncio.to_thread(open_store, objects_url(settings), os.environ)
    try:
        yield store
    finally:
        store.close()
