"""The handlers of the installation for tests of the dashboard."""

import asyncio

from tickwright import EntityTask, Job, Tickwright

app = Tickwright()


@app.job("page.greet", timeout="30s")
async def greet(job: Job, name: str = "world") -> dict[str, str]:
    """Return at once."""
    return {"greeted": name}


@app.job("page.broken", max_attempts=2, retry={"base": "100ms", "factor": 1, "cap": "100ms"})
async def broken(job: Job) -> None:
    """Fail always."""
    raise ValueError("this one never works")


@app.job("page.steps", max_attempts=1)
async def steps(job: Job) -> None:
    """Do one step, and fail after it."""
    await job.step("charge", lambda: {"fence": job.fence})
    raise ValueError("after the step")


@app.job("page.slow", timeout="10m")
async def slow(job: Job) -> None:
    """Run until it is cancelled."""
    await asyncio.sleep(3600)


@app.module("PAGES", every="5s", timeout="4s")
async def pages(task: EntityTask) -> None:
    """Succeed for all entities but one."""
    if task.entity_code == "NL.BAD":
        raise ValueError("this provider never answers")
