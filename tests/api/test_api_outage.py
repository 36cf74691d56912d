"""Requests during an outage of the database: an answer that says so, and a readable log."""

import asyncpg
import pytest
from structlog.testing import capture_logs

from kit.api import running_api


@pytest.mark.parametrize("error", [asyncpg.ConnectionDoesNotExistError("gone"), ConnectionRefusedError(111, "refused")])
async def test_a_request_during_an_outage_gets_503_and_logs_no_traceback(
    database_url: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """On the fast path, on a route, and before the key is looked up; of a change it says that it may have been made."""

    async def unavailable(*_: object, **__: object) -> None:
        raise error

    async with running_api(database_url) as api:
        monkeypatch.setattr(api.service, "schedule_text", unavailable)
        monkeypatch.setattr(api.service, "get_raw", unavailable)
        with capture_logs() as logs:
            lane = await api.admin.post("/v1/jobs", {"task_type": "noop"})
            route = await api.admin.get("/v1/jobs/1")
            api.app._auth._cache.clear()
            monkeypatch.setattr(api.app._auth, "_find", unavailable)
            stranger = await api.admin.get("/v1/jobs/1")
    for answer in (lane, route, stranger):
        answer.says(503, "database_unavailable")
        assert answer.headers["retry-after"] == "1"
    assert ["may have done" in answer.json["detail"] for answer in (lane, route, stranger)] == [True, False, False]
    assert [log["event"] for log in logs] == ["api.unavailable"] * 3
    assert all(log["log_level"] == "warning" and "exc_info" not in log for log in logs)


async def test_a_limit_of_the_database_is_named_and_is_no_internal_error(database_url: str) -> None:
    """For instance a full queue of notifications, which refuses every commit that notifies."""
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "CREATE FUNCTION full_queue() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END $$;"
        "CREATE TRIGGER full_queue BEFORE INSERT ON tickwright.scheduled_tasks EXECUTE FUNCTION full_queue()"
    )
    await connection.close()
    async with running_api(database_url) as api:
        (await api.admin.post("/v1/jobs", {"task_type": "noop"})).says(503, "database_limit_reached")


async def test_an_internal_error_in_a_route_is_a_problem_document(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text does not leave the process; the log has the traceback, once."""

    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a secret of ours")

    async with running_api(database_url) as api:
        monkeypatch.setattr(api.service, "get_raw", broken)
        with capture_logs() as logs:
            answer = await api.admin.get("/v1/jobs/1")
    answer.says(500, "internal_error")
    assert b"secret" not in answer.body
    assert [(log["event"], "exc_info" in log) for log in logs] == [("api.failed", True)]
