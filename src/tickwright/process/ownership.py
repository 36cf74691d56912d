"""Checks which installation owns the prefixes that this process uses outside PostgreSQL.

Two installations with one prefix would take each other's messages, trust each other's marks and replace each other's
files. So each place records its owner, the first installation that claims it. Another installation does not start
there. A place that does not answer at the start is asked until it does; meanwhile nothing can be taken from it.
"""

import asyncio
from collections.abc import Sequence

import structlog

from tickwright.domain.errors import Rejected, TickwrightError, Unavailable
from tickwright.domain.signatures import digest_of
from tickwright.plugin import Ownership
from tickwright.process.database import translated
from tickwright.store.paging import installation_id
from tickwright.store.pool import Pool

ASK_AGAIN_S = 2.0
NAME_CHARS = 16
OWNER_CHARS_MAX = 100
_log = structlog.get_logger("tickwright.ownership")


class OwnershipCheck:
    """The places of one process with a still unknown owner."""

    def __init__(self, pool: Pool, places: Sequence[Ownership]) -> None:
        self._pool, self._open = pool, {one.place: one for one in places}
        self._installation = ""
        self._reported: set[str] = set()
        self._asked: set[str] = set()

    async def claim(self) -> bool:
        """Ask every place that has not answered yet; return whether all have.

        Raises:
            Rejected: ``prefix_in_use``: a place belongs to another installation. Permanent until an operator acts.
            Unavailable: ``database_unavailable``. Retry.
        """
        if not self._open:
            return True
        if not self._installation:
            with translated():
                found = await installation_id(self._pool)
            self._installation = digest_of("belonging", found).hex()[:NAME_CHARS]
        for name, place in list(self._open.items()):
            try:
                owner = (await place.claim(self._installation))[:OWNER_CHARS_MAX]
            except Unavailable as error:
                self._report(name, error)
                continue
            except Rejected as error:  # such as a user that may use the place but not claim it
                self._report(name, error)
                owner = self._installation
            if owner != self._installation:
                self._refuse(place, owner)
            if place.asks_twice and owner == self._installation and name not in self._asked:
                self._asked.add(name)
            else:
                del self._open[name]
        return not self._open

    async def claim_all(self) -> None:
        """Ask until all places have answered. Raises as :meth:`claim`."""
        while not await self.claim():  # noqa: ASYNC110  places outside the process have no event
            await asyncio.sleep(ASK_AGAIN_S)

    def _report(self, place: str, error: TickwrightError) -> None:
        if place not in self._reported:
            self._reported.add(place)
            _log.warning("ownership.not_checked", place=place, code=error.code, reason=error.message)

    def _refuse(self, place: Ownership, owner: str) -> None:
        text = (
            f"{place.prefix!r} in {place.place} belongs to another installation ({owner}): both would take each "
            f"other's work. Set {place.setting} to a place of its own; if that installation is gone, "
            f"delete {place.mark}."
        )
        error = Rejected("prefix_in_use", text, place=place.place, setting=place.setting, owner=owner)
        if not place.is_shared:
            raise error
        _log.warning("ownership.folder_shared", code=error.code, reason=error.message)
