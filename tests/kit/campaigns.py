"""Campaigns for tests: an API whose one source is the test's own database, with five clients in it."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kit.api import Answer, RunningApi, running_api
from kit.postgres import as_reader
from tickwright.capabilities.batches.audience.audience import Audiences
from tickwright.domain.errors import Rejected
from tickwright.sources.named import Sources, SourceSettings

CLIENTS = """
CREATE TABLE public.clients (id bigint PRIMARY KEY, age bigint, income double precision, country text);
INSERT INTO public.clients VALUES (1, 30, 4000, 'UK'), (2, 20, 4000, 'UK'), (3, 40, 1000, 'UK'), (4, NULL, 5000, 'UK'),
  (5, 50, 9000, 'DE');
"""
AUDIENCE: Mapping[str, Any] = {
    "source": "crm",
    "table": "public.clients",
    "key": "id",
    "fields": {"age": "int", "income": "double", "country": "string"},
}
LOAN: Mapping[str, Any] = {
    "type": "MANUAL",
    "product_codes": ["LOAN"],
    "audience": AUDIENCE,
    "expression": 'client.age > 25 && client.income > 3000 && client.country == "UK"',
    "action": {"target": "pg:applications"},
}
"""Selects client 1; client 4 has a missing field."""
SIX_HOURS: Mapping[str, Any] = {
    **LOAN,
    "type": "AUTOMATIC",
    "date_time_execution": "2026-01-05T09:00",
    "time_zone": "Europe/Kyiv",
    "restartable": True,
    "restartable_unit": 6,
    "restartable_unit_type": "HOURS",
}
FORBIDDEN = "http://169.254.169.254/"


def refuse_metadata(target: str) -> None:
    """Allow every destination but one."""
    if target == FORBIDDEN:
        raise Rejected("ssrf_blocked", "this address is not for callbacks")


@dataclass(frozen=True)
class CampaignApi:
    """An API with campaigns; no producer or consumer runs unless the test starts it."""

    api: RunningApi

    async def create(self, name: str, words: Mapping[str, Any] = LOAN, **more: Any) -> Any:
        """Create a campaign and return it."""
        answer = await self.api.admin.post("/v1/campaigns", {"name": name, **words, **more})
        assert answer.status == 201, answer.body
        return answer.json

    async def put(self, name: str, words: Mapping[str, Any]) -> Any:
        """Set a campaign and return the answer."""
        answer = await self.api.admin.send("PUT", f"/v1/campaigns/{name}", dict(words))
        assert answer.status in {200, 201}, answer.body
        return answer.json

    async def refused(self, words: Mapping[str, Any]) -> Any:
        """Return the problem of a refused definition; nothing may have been written."""
        answer = await self.api.admin.post("/v1/campaigns", {"name": "refused", **words})
        assert answer.status == 422, answer.body
        (await self.api.viewer.get("/v1/campaigns/refused")).says(404, "campaign_not_found")
        return answer.json

    async def get(self, path: str) -> Any:
        """Return a viewer's answer of a path below ``/v1``."""
        answer = await self.api.viewer.get(f"/v1{path}")
        assert answer.status == 200, answer.body
        return answer.json

    async def act(self, path: str) -> Any:
        """Send an operator's action, and return the answer."""
        answer = await self.post(path)
        assert answer.status == 200, answer.body
        return answer.json

    async def post(self, path: str, body: Any = None) -> Answer:
        """Send an operator's request below ``/v1``."""
        return await self.api.operator.post(f"/v1{path}", body)

    async def slot(self, name: str, slot_at: datetime, status: str = "NEW", **columns: Any) -> int:
        """Write the execution of an occurrence, as a producer does; other columns as given."""
        names = "".join(f", {column}" for column in columns)
        places = "".join(f", ${place}" for place in range(4, 4 + len(columns)))
        sql = (
            f"INSERT INTO tickwright.executions (batch_id, slot_at, status{names}) "  # names of columns
            f"SELECT id, $2, $3{places} FROM tickwright.batches WHERE name = $1 RETURNING id"
        )
        execution_id: int = await self.api.pool.fetchval(sql, name, slot_at, status, *columns.values())
        return execution_id

    async def chunk(self, execution_id: int, number: int, state: str, **columns: Any) -> None:
        """Write a chunk of an execution."""
        names = "".join(f", {column}" for column in columns)
        places = "".join(f", ${place}" for place in range(4, 4 + len(columns)))
        await self.api.pool.execute(
            f"INSERT INTO tickwright.execution_chunks (execution_id, number, state, value{names}) "
            f"VALUES ($1, $2, $3, '{{}}'{places})",
            execution_id,
            number,
            state,
            *columns.values(),
        )

    async def action(self, execution_id: int, chunk: int, client_id: str) -> None:
        """Write an action of an execution."""
        sql = (
            "INSERT INTO tickwright.execution_actions (execution_id, chunk, client_id, client) VALUES ($1, $2, $3, $4)"
        )
        await self.api.pool.execute(sql, execution_id, chunk, client_id, json.dumps({"id": client_id}))

    async def execution(self, execution_id: int) -> Any:
        """Return the row of an execution."""
        return await self.api.pool.fetchrow("SELECT * FROM tickwright.executions WHERE id = $1", execution_id)

    async def trail(self) -> list[tuple[str, str, str]]:
        """Return actor, action and subject of each change of campaigns and executions, oldest first."""
        sql = (
            "SELECT actor, action, subject FROM tickwright.audit "
            "WHERE subject LIKE 'campaign:%' OR subject LIKE 'execution:%' ORDER BY id"
        )
        return [tuple(row) for row in await self.api.pool.fetch(sql)]


@asynccontextmanager
async def campaign_api(url: str) -> AsyncIterator[CampaignApi]:
    """Run an API on the database ``url``, which is also the source ``crm``."""
    sources = Sources({"crm": SourceSettings(url=as_reader(url))}, lambda _: None)
    try:
        async with running_api(url, audiences=Audiences(sources, None), allow_target=refuse_metadata) as api:
            await api.pool.execute(CLIENTS)
            yield CampaignApi(api)
    finally:
        await sources.aclose()
