"""What tests of faults share: batches worked by processes that are killed or stopped, and what has to hold then."""

import os
import sys
from pathlib import Path

from kit.batches import TARGET, BatchWorld
from kit.forks import Child
from kit.processes import spawn

PROCESS = Path(__file__).with_name("batch_process.py")
MEMBERS = 60
SELECTED = {str(number) for number in range(0, MEMBERS, 2)}
AGAIN_S = 50
"""A lease of two seconds, the next look, and a machine that has other things to do."""


def start(world: BatchWorld, role: str, log: Path, **words: str) -> Child:
    """Start a role as a process of its own; kill it with ``kill_group``."""
    environment = {"BATCH_DATABASE": world.url, "BATCH_ROLE": role, **words}
    return spawn([sys.executable, str(PROCESS)], log, {**os.environ, **environment})


async def is_right(world: BatchWorld, execution_id: int) -> None:
    """C2: finished, every selected member has one action, and nobody else has one."""
    row = await world.execution(execution_id)
    assert row["status"] == "FINISHED", (row["status"], row["error_code"], row["error_message"])
    assert set(await world.actions(execution_id)) == SELECTED
    assert (row["chunks_done"], row["members"], row["seen"]) == (row["chunks"], MEMBERS, MEMBERS)
    assert row["actions"] == len(SELECTED)


async def redone(world: BatchWorld) -> int:
    """Return how many claims of chunks were not the first one."""
    return int(await world.pool.fetchval("SELECT coalesce(sum(fence - 1), 0) FROM tickwright.execution_chunks"))


async def sent_once(world: BatchWorld, execution_id: int) -> None:
    """C2: one message per selected member has left, and none twice."""
    sent = [one for one in await world.sent() if one["destination"] == TARGET]
    keys = [one["key"] for one in sent]
    assert sorted(keys) == sorted(f"{execution_id}:{number}" for number in SELECTED)
