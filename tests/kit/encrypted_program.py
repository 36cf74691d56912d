"""A program with encrypted types, which handles payloads in every way that may leak them; a worker runs it."""

from datetime import timedelta
from typing import Any

from tickwright import Job, JobChunk, Retry, Snooze, Tickwright

app = Tickwright()


@app.job("charge", encrypted=True, max_attempts=1)
async def charge(job: Job, card: str, how: str = "") -> Any:
    """Report progress, and end as ``how`` says."""
    await job.progress({"seen": card})
    match how:
        case "raises":
            raise ValueError(f"the card {card} is refused")
        case "exits":
            raise SystemExit(card)
        case "retries":
            raise Retry(f"{card} again", after=timedelta(hours=1))
        case "snoozes":
            raise Snooze(timedelta(hours=1))
        case "no json":
            return {card: object()}
    return {"charged": card}


@app.job("charge.sync", encrypted=True, max_attempts=1)
def charge_sync(job: Job, card: str) -> None:
    """Fail in a thread."""
    raise KeyError(card)


@app.job("charge.many", encrypted=True, batch=5, within="10ms", max_attempts=1)
async def charge_many(chunk: JobChunk[dict[str, str]]) -> None:
    """Fail one item of each chunk."""
    for item in chunk:
        item.fail(f"no {item.value['card']}")


@app.job("open", max_attempts=1)
async def shown(job: Job, card: str) -> str:
    """Be a type without encryption: what the test searches for is found there."""
    return card
