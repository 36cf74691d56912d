"""Requests for reports over REST, as a user sends them, and waiting until each report is over."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from tickwright.bench.ground import Ground, wait_until

CHECK_S, CROWD_CHECK_S = 0.01, 0.5
OVER_WITHIN_S = 900.0
_OVER = frozenset({"finished", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Seen:
    """A report that is over: its record, and after how many seconds from the request that was observed."""

    record: Mapping[str, Any]
    after_s: float


class ReportClient:
    """One client of the API."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def ask(
        self, kind: str, conditions: Mapping[str, Any], *, requester: str = "bench", check_s: float = CHECK_S
    ) -> Seen:
        """Request one report and wait until it is over, reading it every ``check_s``."""
        began_s = time.monotonic()
        body = {"type": kind, "conditions": conditions, "requester": requester}
        async with self._http.post("/v1/reports", json=body) as answer:
            answer.raise_for_status()
            report_id = (await answer.json())["id"]
        while True:
            async with self._http.get(f"/v1/reports/{report_id}") as answer:
                answer.raise_for_status()
                record = await answer.json()
            after_s = time.monotonic() - began_s
            if record["status"] in _OVER:
                return Seen(record, after_s)
            if after_s > OVER_WITHIN_S:
                raise RuntimeError(f"report {report_id} is {record['status']} after {OVER_WITHIN_S} s")
            await asyncio.sleep(check_s)

    async def ask_many(self, kind: str, conditions: Sequence[Mapping[str, Any]]) -> list[Seen]:
        """Request all of them at once; read them seldom enough that the reading is not what is measured."""
        asking = (self.ask(kind, one, requester=f"user{n}", check_s=CROWD_CHECK_S) for n, one in enumerate(conditions))
        return await asyncio.gather(*asking)

    async def lines(self, report_id: int) -> int:
        """Return how many lines the file of a report has, read through its link."""
        count = 0
        async with self._http.get(f"/v1/reports/{report_id}/file") as answer:
            answer.raise_for_status()
            async for piece in answer.content.iter_chunked(1 << 20):
                count += piece.count(b"\r\n")
        return count


@asynccontextmanager
async def open_client(ground: Ground, environment: Mapping[str, str]) -> AsyncIterator[ReportClient]:
    """Start an API and give a client of it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    key = json.loads(ground.command("keys", "create", "bench", "--json"))["key"]
    api = ground.launch("api", environment={**environment, "TICKWRIGHT_API_BIND": f"127.0.0.1:{port}"})
    await asyncio.to_thread(wait_until, lambda: api.poll() is not None or _answers(port), 30, "the API to listen")
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as http:
        yield ReportClient(http)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
