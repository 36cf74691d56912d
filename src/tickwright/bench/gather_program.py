"""The program of ``bench gather``: four listeners that take as long as the conditions say, and yield as many rows."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tickwright import ReportRequest, Tickwright

app = Tickwright()
LISTENERS = ("users", "cards", "limits", "notes")


def _listener(name: str) -> None:
    @app.listener(name)
    async def rows(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        await asyncio.sleep(request.conditions["seconds"][LISTENERS.index(name)])
        for number in range(request.conditions["rows"]):
            yield {"id": number, name: f"{name} {number}"}


for _name in LISTENERS:
    _listener(_name)


@app.report("gather", listeners=LISTENERS, check_every="30s")
def gather() -> str:
    """Join them all."""
    return (
        "SELECT id, users, cards, limits, notes "
        "FROM users JOIN cards USING (id) JOIN limits USING (id) JOIN notes USING (id)"
    )


@app.report(
    "join",
    listeners={
        "people": {"source": "plt_user", "sql": "SELECT id, name, country FROM public.people"},
        "withdrawals": {"source": "plt_fund", "sql": "SELECT id, user_id, amount, at FROM public.withdrawals"},
    },
    checks=60,
    deadline="30m",
)
def join() -> str:
    """Each withdrawal with its user."""
    return (
        "SELECT w.id, w.user_id, p.name, p.country, w.amount, w.at FROM withdrawals w JOIN people p ON p.id = w.user_id"
    )
