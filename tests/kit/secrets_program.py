"""A program whose functions fail with secrets in their data, as functions of users do."""

import json
import os
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

from yarl import URL

from tickwright import Answer, BatchChunk, BatchRun, EntityTask, Job, Poll, ReportRequest, Tickwright

app = Tickwright()
TOKEN = "TICKWRIGHT_SECRET_TOKEN"


@app.job("keeps", max_attempts=1)
async def keeps(_job: Job) -> None:
    """Fail with the secret in a local variable: a traceback must not show it."""
    token = os.environ[TOKEN]
    raise ValueError(f"a token of {len(token)} characters was refused")


@app.job("tells", max_attempts=1)
async def tells(_job: Job) -> None:
    """Fail with the secret in the text of the error, as JSON."""
    raise ValueError("401: " + json.dumps({"sent": f"Bearer {os.environ[TOKEN]}"}))


@app.job("returns", max_attempts=1)
async def returns(_job: Job) -> dict[str, Any]:
    """Succeed, without the secret in the result: a returned value is the user's own data."""
    return {"characters": len(os.environ[TOKEN])}


@app.module("LOCATIONS", every="5s", timeout="5s")
async def locations(task: EntityTask) -> None:
    """Fail with the secret of the party, as aiohttp shows the URL of a request."""
    party = task.resolve(task.party)
    raise RuntimeError(f"401 for {party['token']}, url={URL(party['url']).with_query(key=party['token'])!r}")


@app.partner("function", rate="100/s", concurrency=2, timeout="5s")
async def function(_poll: Poll) -> Answer:
    """Fail with the secret in the text of the error, as a form encodes it."""
    raise RuntimeError("401 for " + urlencode({"token": os.environ[TOKEN]}))


@app.listener("numbers")
async def numbers(_request: ReportRequest) -> AsyncIterator[dict[str, object]]:
    """Fail after the first row."""
    yield {"n": 1}
    raise RuntimeError(f"401 for {os.environ[TOKEN]}")


@app.report("numbers", listeners=["numbers"])
def numbers_report() -> str:
    """Return the merge's SQL."""
    return "SELECT n FROM numbers"


async def months(_run: BatchRun) -> AsyncIterator[dict[str, int]]:
    """Yield one chunk."""
    yield {"month": 1}


@app.batch("months.close", plan=months, attempts=1)
async def close(_chunk: BatchChunk) -> None:
    """Fail with the secret in the text of the error."""
    raise RuntimeError(f"401 for {os.environ[TOKEN]}")
