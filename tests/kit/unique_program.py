"""A program that schedules and claims unique jobs until it is killed: ``python unique_program.py URL``."""

import asyncio
import random
import sys

from tickwright import Unique
from tickwright.capabilities.jobs.enqueue import Enqueuer
from tickwright.capabilities.jobs.requests import NewJob
from tickwright.store.pool import open_pool

CLAIM = """
UPDATE tickwright.scheduled_tasks SET status = 'processing', owner = 1, fence = fence + 1, attempts = 1
 WHERE id = ANY (ARRAY (SELECT id FROM ONLY tickwright.scheduled_tasks WHERE status = 'pending' FOR UPDATE SKIP LOCKED))
"""
RULES = [Unique(by=("c",), over=("pending",), on_conflict=parts) for parts in ("keep", ("payload", "priority"))]


async def main(url: str) -> None:
    """Schedule in bulk and one by one, and claim now and then."""
    pool = await open_pool(url, min_size=1, max_size=4)
    enqueuer = Enqueuer(pool)
    while True:
        jobs = [NewJob("t", f'{{"c": {random.randrange(20)}}}', unique=random.choice(RULES)) for _ in range(10)]
        await asyncio.gather(enqueuer.schedule_many(jobs), *map(enqueuer.schedule, jobs))
        if random.random() < 0.5:
            await pool.execute(CLAIM)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
