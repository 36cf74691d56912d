"""Values for functions of other capabilities, built by a test."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

from tickwright import Answer, EntityTask, Poll, ReportRequest, Tickwright
from tickwright.testing import make_poll, make_request, make_task


async def test_functions_of_other_capabilities_are_called_with_values() -> None:
    """What the decorators return is the function itself."""
    app = Tickwright()

    @app.partner("swift")
    async def swift(poll: Poll) -> Answer:
        return Answer(f"at {poll.external_id}")

    @app.module("LOCATIONS")
    async def locations(task: EntityTask) -> Any:
        return task.entity_code, task.resolve(task.party["token"], to="https://a.example")

    @app.listener("users")
    async def users(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        yield {"country": request.conditions["country"]}

    assert (await swift(make_poll("AWB1"))).status == "at AWB1"
    task = make_task("NL-TNM", "LOCATIONS", {"token": "${env:TOKEN}"}, secrets={"TOKEN": "s3cret"})
    assert await locations(task) == ("NL-TNM", "s3cret")
    assert [row async for row in users(make_request("users", {"country": "NL"}))] == [{"country": "NL"}]


def test_values_have_the_times_that_a_test_gives_them() -> None:
    """A poll's id and a task's window follow from them."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert make_poll("AWB1", due_at=at).id == f"poll_1_{int(at.timestamp())}"
    assert make_task("A", "B", window_at=at).drop_dead_at == at + timedelta(minutes=15)
