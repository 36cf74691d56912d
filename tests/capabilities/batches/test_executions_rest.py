"""Executions by REST: their progress, their decisions per client, the actions on them, and why they wait."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from kit.campaigns import LOAN, SIX_HOURS, CampaignApi

SLOT = datetime(2026, 1, 5, 7, tzinfo=UTC)
HOUR = timedelta(hours=1)


def codes(explanation: dict[str, Any]) -> list[str]:
    """Return the codes of an explanation's reasons."""
    return [reason["code"] for reason in explanation["reasons"]]


async def test_a_listing_is_newest_first_and_has_pages(campaigns: CampaignApi) -> None:
    """All executions by creation, those of one campaign by slot; with filters."""
    for name in ("a", "b"):
        await campaigns.create(name)
    made = [
        await campaigns.slot(name, SLOT - number * HOUR, "FINISHED" if number % 2 else "STOPPED")
        for number in range(4)
        for name in ("a", "b")
    ]

    async def ids(query: str) -> list[int]:
        first = await campaigns.get(f"/executions?limit=3&{query}")
        found = [one["id"] for one in first["items"]]
        while first["next"]:
            first = await campaigns.get(f"/executions?limit=3&{query}&cursor={first['next']}")
            found += [one["id"] for one in first["items"]]
        return found

    assert await ids("") == made[::-1]
    assert await ids("campaign=a") == made[::2]
    assert await ids("campaign=a&status=FINISHED") == [made[2], made[6]]
    assert await ids("status=FINISHED&status=STOPPED&kind=campaign") == made[::-1]
    assert (
        await ids("status=NEW") == await ids("batch=a") == await ids("campaign=none") == await ids("kind=program") == []
    )
    (await campaigns.api.viewer.get("/v1/executions?campaign=a&batch=b")).says(422, "wrong_argument")
    (await campaigns.api.viewer.get("/v1/executions?status=DONE")).says(422, "invalid_parameter")
    (await campaigns.api.viewer.get("/v1/executions/999")).says(404, "execution_not_found")


async def test_an_execution_shows_progress_pace_and_problems(campaigns: CampaignApi) -> None:
    """The pace is that of the last chunks and predicts the end; none while it is paused."""
    await campaigns.create("loans")
    now = await campaigns.api.pool.fetchval("SELECT clock_timestamp()")
    counts = {"chunks": 4, "chunks_done": 2, "members": 400, "seen": 200, "selected": 20, "skipped": 2, "actions": 20}
    columns = {
        **counts,
        "planned_at": now,
        "started_at": now,
        "version": 1,
        "snapshot": json.dumps({"chunk_rows": 100}),
    }
    execution_id = await campaigns.slot("loans", SLOT, "IN_PROGRESS", **columns)
    problems = json.dumps([{"client_id": "7", "problem": "it divides by zero"}])
    for number in range(2):
        done = {
            "seen": 100,
            "began_at": now + timedelta(seconds=number),
            "done_at": now + timedelta(seconds=number + 1),
        }
        await campaigns.chunk(execution_id, number, "done", **done, problems=problems if number else None)
    shown = await campaigns.get(f"/executions/{execution_id}")
    assert (shown["seen"], shown["members"], shown["seen_per_s"]) == (200, 400, 100.0)
    assert datetime.fromisoformat(shown["eta_at"]) - now < timedelta(seconds=60)
    assert (shown["progress"], shown["working"]) == (0.5, [])
    assert shown["problems"] == [{"chunk": 1, "problem": "it divides by zero", "client_id": "7"}]
    assert (shown["definition"], shown["name"], shown["kind"]) == ({"chunk_rows": 100}, "loans", "campaign")
    worker = (
        "INSERT INTO tickwright.workers (id, name, roles, version, lease_until) VALUES (7, 'host:7', '{}', '0', now())"
    )
    await campaigns.api.pool.execute(worker)
    await campaigns.chunk(execution_id, 2, "working", owner=7, began_at=now)
    [working] = (await campaigns.get(f"/executions/{execution_id}"))["working"]
    assert (working["worker"], working["chunks"], datetime.fromisoformat(working["since"])) == ("host:7", 1, now)
    await campaigns.act(f"/executions/{execution_id}/pause")
    paused = await campaigns.get(f"/executions/{execution_id}")
    assert (paused["seen_per_s"], paused["eta_at"]) == (None, None)
    assert paused["paused_at"] is not None


async def test_actions_are_listed_and_found_by_client(campaigns: CampaignApi) -> None:
    """Each shows whether it has left, page by page, whatever the clients' ids."""
    await campaigns.create("loans")
    execution_id = await campaigns.slot("loans", SLOT, "FINISHED", chunks=2, chunks_released=1)
    await campaigns.chunk(execution_id, 0, "released")
    await campaigns.chunk(execution_id, 1, "done")
    names = ["a&b=c", "x" * 999 + "1", "x" * 999 + "2", "Ünïcode", "0"]
    for place, name in enumerate(names):
        await campaigns.action(execution_id, place % 2, name)
    found: list[Any] = []
    page: Any = {"next": ""}
    while page["next"] is not None:
        cursor = f"&cursor={page['next']}" if page["next"] else ""
        page = await campaigns.get(f"/executions/{execution_id}/actions?limit=2{cursor}")
        found += page["items"]
    assert [one["client_id"] for one in found] == sorted(names)
    assert {one["client_id"]: one["released"] for one in found} == {
        name: place % 2 == 0 for place, name in enumerate(names)
    }
    [one] = (await campaigns.get(f"/executions/{execution_id}/actions?client_id=a%26b%3Dc"))["items"]
    assert one == {
        "client_id": "a&b=c",
        "chunk": 0,
        "client": {"id": "a&b=c"},
        "released": True,
        "payload_hidden": False,
    }
    assert (await campaigns.get(f"/executions/{execution_id}/actions?client_id=unknown"))["items"] == []
    (await campaigns.api.viewer.get("/v1/executions/999/actions")).says(404, "execution_not_found")


async def test_actions_on_an_execution_follow_the_table(campaigns: CampaignApi) -> None:
    """Each action in each status: its answer, its writes, and its actor."""
    await campaigns.create("loans")
    outcomes = {}
    for place, status in enumerate(("NEW", "IN_PROGRESS", "FINISHED", "EXCEPTION_OCCURRED", "STOPPED", "DISABLED")):
        for action in ("pause", "resume", "stop", "retry"):
            await campaigns.api.pool.execute("DELETE FROM tickwright.executions WHERE status = 'IN_PROGRESS'")
            execution_id = await campaigns.slot("loans", SLOT + place * HOUR, status, error_code="x", tries=3)
            answer = await campaigns.post(f"/executions/{execution_id}/{action}")
            outcomes[status, action] = answer.json["outcome"] if answer.status == 200 else answer.json["code"]
            await campaigns.api.pool.execute("DELETE FROM tickwright.executions WHERE id = $1", execution_id)
    ended = {"pause": "execution_ended", "resume": "execution_ended", "stop": "execution_ended", "retry": "not_failed"}
    is_open = {"pause": "paused", "resume": "not_paused", "stop": "stopped", "retry": "not_failed"}
    expected = {
        "NEW": is_open,
        "IN_PROGRESS": is_open,
        "FINISHED": ended,
        "EXCEPTION_OCCURRED": {**ended, "retry": "retried"},
        "STOPPED": ended,
        "DISABLED": ended,
    }
    assert outcomes == {(status, action): done for status, row in expected.items() for action, done in row.items()}
    audited = [
        (actor, action) for actor, action, subject in await campaigns.trail() if subject.startswith("execution:")
    ]
    assert audited == [("operator", f"executions.{action}") for action in ("pause", "stop", "pause", "stop", "retry")]


async def test_a_finished_execution_can_be_held_back_while_it_releases(campaigns: CampaignApi) -> None:
    """Paused and resumed, or stopped: unreleased actions stay."""
    await campaigns.create("loans")
    execution_id = await campaigns.slot("loans", SLOT, "FINISHED", chunks=2, chunks_released=1, actions=20, released=10)
    path = f"/executions/{execution_id}"
    assert codes(await campaigns.get(f"{path}/explain"))[1] == "releasing"
    assert (await campaigns.act(f"{path}/pause"))["paused"]
    assert (await campaigns.act(f"{path}/resume"))["paused"] is False
    stopped = await campaigns.act(f"{path}/stop")
    assert (stopped["outcome"], stopped["status"]) == ("stopped", "STOPPED")
    assert codes(await campaigns.get(f"{path}/explain")) == ["stopped", "not_released"]


async def test_a_retry_clears_the_failure(campaigns: CampaignApi) -> None:
    """Error, attempts and pauses are gone; finished chunks stay finished, waiting ones have all attempts again."""
    await campaigns.create("loans")
    columns = {"error_code": "x", "error_message": "y", "error_trace": "z", "tries": 3, "lost": 2, "chunks": 2}
    execution_id = await campaigns.slot("loans", SLOT, "EXCEPTION_OCCURRED", **columns, finished_at=SLOT)
    later = datetime(2999, 1, 1, tzinfo=UTC)
    await campaigns.chunk(execution_id, 0, "done", tries=1)
    await campaigns.chunk(execution_id, 1, "waiting", tries=9, lost=3, due_at=later)
    explained = await campaigns.get(f"/executions/{execution_id}/explain")
    assert codes(explained)[:2] == ["failed", "can_be_retried"]
    done = await campaigns.act(f"/executions/{execution_id}/retry")
    assert (done["outcome"], done["status"]) == ("retried", "NEW")
    row = await campaigns.execution(execution_id)
    assert [row[name] for name in ("error_code", "error_message", "error_trace", "finished_at")] == [None] * 4
    assert (row["tries"], row["lost"]) == (0, 0)
    sql = "SELECT state, tries, lost, due_at <= now() AS due FROM tickwright.execution_chunks ORDER BY number"
    assert [tuple(chunk) for chunk in await campaigns.api.pool.fetch(sql)] == [
        ("done", 1, 0, True),
        ("waiting", 0, 0, True),
    ]


async def test_explain_says_what_an_execution_waits_for(campaigns: CampaignApi) -> None:
    """Another execution, an unavailable source, a rate, a chunk that failed, and no live consumer."""
    await campaigns.create("loans")
    at_work = {"planned_at": SLOT, "chunks": 3, "chunks_done": 1, "members": 30, "seen": 10}
    first = await campaigns.slot(
        "loans", SLOT, "IN_PROGRESS", **at_work, next_chunk_at=datetime(2999, 1, 1, tzinfo=UTC)
    )
    problem = json.dumps([{"problem": "the source was unreachable"}])
    later = datetime(2998, 1, 1, tzinfo=UTC)
    await campaigns.chunk(first, 1, "waiting", tries=2, due_at=later, problems=problem, lost=1)
    explained = await campaigns.get(f"/executions/{first}/explain")
    assert codes(explained) == ["at_work", "rate", "chunk_later", "chunk_lost", "no_consumer"]
    assert explained["summary"] == "1 of 3 chunks are done, 10 of 30 members read"
    assert "the source was unreachable" in explained["reasons"][2]["text"]
    second = await campaigns.slot(
        "loans", SLOT + HOUR, "NEW", due_at=later, tries=2, error_message="crm is unreachable"
    )
    waits = await campaigns.get(f"/executions/{second}/explain")
    assert codes(waits)[:2] == ["waits_for_execution", "later"]
    assert "crm is unreachable" in waits["reasons"][1]["text"]


async def live(campaigns: CampaignApi, roles: list[str], batches: list[str]) -> None:
    """Insert a live process."""
    await campaigns.api.pool.execute(
        "INSERT INTO tickwright.workers (id, name, roles, version, lease_until, facts) "
        "SELECT count(*) + 1, 'one', $1, '0', clock_timestamp() + interval '1 hour', $2 FROM tickwright.workers",
        roles,
        json.dumps({"batches": batches}),
    )


async def test_explain_names_the_missing_process(campaigns: CampaignApi) -> None:
    """A producer, a consumer, or a consumer with the campaign's source."""
    await campaigns.create("loans", SIX_HOURS)
    await campaigns.act("/campaigns/loans/activate")
    assert {"no_producer", "no_consumer"} <= set(codes(await campaigns.get("/campaigns/loans/explain")))
    await live(campaigns, ["scheduler", "campaign-consumer"], ["source:other"])
    explained = await campaigns.get("/campaigns/loans/explain")
    assert "nobody_serves" in codes(explained)
    assert any("[sources.crm]" in reason["text"] for reason in explained["reasons"])
    await live(campaigns, ["campaign-consumer"], ["source:crm"])
    assert not {"no_producer", "no_consumer", "nobody_serves"} & set(
        codes(await campaigns.get("/campaigns/loans/explain"))
    )


async def test_explain_says_why_a_campaign_does_not_run(campaigns: CampaignApi) -> None:
    """Manual, idle, next occurrence, a late producer, an open execution, skips, and how the last one ended."""
    await campaigns.create("by-hand", LOAN)
    assert codes(await campaigns.get("/campaigns/by-hand/explain"))[0] == "manual"
    await campaigns.create("loans", SIX_HOURS)
    idle = await campaigns.get("/campaigns/loans/explain")
    assert codes(idle)[0] == "not_activated"
    assert "never_executed" in codes(idle)
    await campaigns.act("/campaigns/loans/activate")
    assert codes(await campaigns.get("/campaigns/loans/explain"))[0] == "next_slot"
    late = "UPDATE tickwright.batches SET next_slot_at = clock_timestamp() - interval '1 minute' WHERE name = 'loans'"
    await campaigns.api.pool.execute(late)
    failed = await campaigns.slot("loans", SLOT, "EXCEPTION_OCCURRED", error_message="boom", error_code="x")
    await campaigns.slot("loans", SLOT + HOUR, "IN_PROGRESS", chunks=3, chunks_done=1, planned_at=SLOT)
    explained = await campaigns.get("/campaigns/loans/explain")
    assert [code for code in codes(explained) if not code.startswith("no_")] == [
        "producer_late", "execution_at_work", "overlap", "last_failed",
    ]  # fmt: skip
    assert f"executions retry {failed}" in explained["reasons"][-1]["text"]


async def test_explain_shows_the_outcome_of_an_occurrence(campaigns: CampaignApi) -> None:
    """It has an execution, was skipped alone or among others, is to come, was never due, or is no occurrence."""
    await campaigns.create("loans", SIX_HOURS)
    made = await campaigns.slot("loans", SLOT, "FINISHED")
    insert = (
        "INSERT INTO tickwright.execution_skips (batch_id, slot_at, until_at, slots, reason) "
        "SELECT id, $1, $2, $3, $4 FROM tickwright.batches WHERE name = 'loans'"
    )
    await campaigns.api.pool.execute(insert, SLOT + 6 * HOUR, SLOT + 6 * HOUR, 1, "overlap")
    await campaigns.api.pool.execute(insert, SLOT + 12 * HOUR, SLOT + 24 * HOUR, 3, "misfire")

    async def about(at: datetime) -> str:
        found = await campaigns.get(f"/campaigns/loans/explain?slot={at:%Y-%m-%dT%H:%M:%SZ}")
        assert found["summary"] == found["reasons"][0]["text"]
        return str(codes(found)[0])

    assert await about(SLOT) == "slot_has_execution"
    assert await about(SLOT + 6 * HOUR) == "slot_skipped_overlap"
    assert await about(SLOT + 18 * HOUR) == "slot_skipped_misfire"
    assert await about(SLOT + 30 * HOUR) == "slot_not_scheduled"
    assert await about(SLOT + HOUR) == "slot_is_none"
    assert await about(datetime(2199, 1, 5, 7, tzinfo=UTC)) == "slot_to_come"
    explained = await campaigns.get("/campaigns/loans/explain")
    assert [code for code in codes(explained) if code.startswith("skipped_")] == ["skipped_misfire", "skipped_overlap"]
    assert str(made)
    (await campaigns.api.viewer.get("/v1/campaigns/loans/explain?slot=yesterday")).says(422, "invalid_datetime")


async def test_programs_batches_are_listed_beside_campaigns(campaigns: CampaignApi) -> None:
    """Under a path of their own, with the same actions and fields; neither is found under the other's path."""
    await campaigns.api.pool.execute(
        "INSERT INTO tickwright.batches (name, kind, type, set_by) VALUES ('sync', 'program', 'MANUAL', 'app')"
    )
    [listed] = (await campaigns.get("/batches"))["items"]
    assert (listed["name"], listed["kind"], listed["set_by"]) == ("sync", "program", "app")
    assert (await campaigns.get("/campaigns"))["items"] == []
    started = (await campaigns.act("/batches/sync/start"))["executions"][0]["id"]
    assert [one["id"] for one in (await campaigns.get("/executions?batch=sync"))["items"]] == [started]
    assert codes(await campaigns.get("/batches/sync/explain"))[0] == "manual"
    (await campaigns.post("/batches/sync/activate")).says(409, "batch_is_manual")
    (await campaigns.post("/campaigns/sync/start")).says(404, "campaign_not_found")
    (await campaigns.post("/batches/none/start")).says(404, "batch_not_found")
