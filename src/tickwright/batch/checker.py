"""The checker: reacts to what is finished and lets its actions leave, each chunk's in one transaction.

A crash between finishing and acting loses nothing and doubles nothing: whether a chunk's actions have left is a state
of the chunk, changed where its messages are written into the outbox. The relay delivers them.
"""

from collections import Counter

from tickwright.batch.ending import SQL, job_of
from tickwright.ports.lease import HeldLease
from tickwright.ports.probe import NO_PROBE, Probe

CHUNKS_PER_ROUND = 20
OUTBOX_MAX = 200_000
"""Messages that wait; while there are more, no actions are added to them."""
FULL_S = 1.0
IDLE_S = 2.0


class Checker:
    """The round of a loop under the lease ``campaign-checker``.

    Invariants:
        BCK-1: an action leaves once, and never before its execution is finished unless its definition says ``chunk``.
        BCK-2: nothing of a stopped, disabled or failed execution leaves.
    """

    def __init__(self, *, probe: Probe = NO_PROBE) -> None:
        self._probe = probe
        self.counts: Counter[str] = Counter()

    async def round(self, lease: HeldLease) -> float:
        """Release some chunks; return in how many seconds to come again, 0 where more wait."""
        for _ in range(CHUNKS_PER_ROUND):
            async with lease.transaction() as connection:
                if connection is None:
                    return 0.0
                if await connection.fetchval(SQL["outbox_is_full"], OUTBOX_MAX):
                    return FULL_S
                chunk = await connection.fetchrow(SQL["next_chunk"])
                if chunk is None:
                    wait_s = await connection.fetchval(SQL["next_release_in"])
                    return IDLE_S if wait_s is None else max(wait_s, 0.0)
                if chunk["target"] is not None and chunk["actions"]:
                    job = job_of(chunk["target"])
                    put = ("put_messages", chunk["target"]) if job is None else ("put_jobs", job)
                    await connection.execute(SQL[put[0]], chunk["id"], chunk["number"], put[1])
                await connection.fetchval(SQL["note_released"], chunk["id"], chunk["number"])
                await self._probe.reached("batches.releasing", execution=chunk["id"], number=chunk["number"])
            self.counts["chunks"] += 1
            self.counts["actions"] += chunk["actions"]
            await self._probe.reached("batches.released", execution=chunk["id"], number=chunk["number"])
        return 0.0
