"""Reports over REST: asked for once, looked at, listed, cancelled."""

from typing import Any

from kit.report_api import ReportApi, users

REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"type": "user"}, 422, "unknown_report_type"),
    ({"type": "users", "conditions": {}}, 422, "invalid_conditions"),
    ({"type": "users", "conditions": {"country": 7, "town": "x"}}, 422, "invalid_conditions"),
    ({"type": "users", "conditions": {"country": "NL"}, "format": "xlsx"}, 422, "invalid_value"),
    ({"type": "users", "conditions": {"country": "NL"}, "notify": "nobody"}, 422, "receiver_not_found"),
    ({"type": "users", "conditions": {"country": "NL"}, "status": "finished"}, 400, "unknown_field"),
    ({"type": "users", "conditions": {"country": "x" * 20_000}}, 413, "conditions_too_large"),
    ({"type": "users", "conditions": {"country": "NL"}, "requester": ""}, 422, "invalid_value"),
    ({"type": "users", "conditions": {"country": "NL"}, "max_age": "5"}, 422, "invalid_duration"),
]


async def test_the_record_is_the_answer_and_the_file_comes_later(desk: ReportApi) -> None:
    """201 with the record at once, whoever works or not; then progress, a file, a manifest, times and figures."""
    answer = await desk.ask(conditions={"country": "NL"}, department="sales", source="crm")
    assert answer.status == 201
    made = answer.json
    assert answer.headers["location"] == f"/v1/reports/{made['id']}"
    assert (made["status"], made["parts_done"], made["parts_expected"], made["file"]) == ("pending", 0, 1, None)
    assert (made["requester"], made["department"], made["source"], made["format"]) == (
        "operator",
        "sales",
        "crm",
        "csv",
    )
    async with desk.world.process({"users": users}):
        await desk.world.finished(made["id"])
    seen = await desk.get(f"/{made['id']}")
    assert (seen["status"], seen["parts_done"], seen["rows"]) == ("finished", 1, 2)
    assert seen["file"] == f"/v1/reports/{made['id']}/file"
    assert seen["manifest"]["complete"] is True
    assert [(part["listener"], part["state"], part["rows"], part["attempts"]) for part in seen["parts"]] == [
        ("users", "done", 2, 1)
    ]
    assert seen["created_at"] <= seen["started_at"] <= seen["last_part_at"] <= seen["finished_at"]
    assert len(seen["checksum"]) == len(seen["query_key"]) == 64


async def test_an_equal_request_gets_the_first_ones_record(desk: ReportApi) -> None:
    """Same requester, type, format and conditions while it runs: 200 and that record. Anything else: another one."""
    first = await desk.asked(conditions={"country": "NL"})
    again = await desk.ask(conditions={"country": "N" + "L"}, department="other")
    assert (again.status, again.json["created"], again.json["id"]) == (200, False, first)
    others = [
        await desk.asked(conditions={"country": "DE"}),
        await desk.asked(conditions={"country": "NL"}, format="parquet"),
        await desk.asked(conditions={"country": "NL"}, requester="somebody"),
    ]
    assert len({first, *others}) == 4
    await desk.api.operator.post(f"/v1/reports/{first}/cancel")
    assert await desk.asked(conditions={"country": "NL"}) not in {first, *others}


async def test_a_young_finished_report_answers_where_the_request_says_so(desk: ReportApi) -> None:
    """``max_age``: same requester and key, not older, file there in its full size; else a new one is made."""
    first = await desk.finished(conditions={"country": "NL"})
    again = await desk.ask(conditions={"country": "NL"}, max_age="1h")
    assert (again.status, again.json["created"], again.json["id"]) == (200, False, first)
    assert (await desk.ask(conditions={"country": "NL"}, max_age="1h", requester="me")).status == 201
    row = await desk.world.record(first)
    await desk.world.objects.delete([row["file_key"]])
    assert (await desk.ask(conditions={"country": "NL"}, max_age="1h")).status == 201


async def test_a_finished_report_that_is_too_old_answers_nothing(desk: ReportApi) -> None:
    """Older than ``max_age``, or without its file by now: a new one."""
    first = await desk.finished(conditions={"country": "NL"})
    assert await desk.asked(conditions={"country": "NL"}, max_age="0s") != first


async def test_what_cannot_be_asked_for_is_refused_at_once(desk: ReportApi) -> None:
    """With a stable code, before anything is written."""
    for body, status, code in REFUSED:
        (await desk.api.operator.post("/v1/reports", body)).says(status, code)
    assert (await desk.get(""))["items"] == []


async def test_an_unknown_type_is_answered_with_the_nearest_one(desk: ReportApi) -> None:
    """And every mistake of the conditions is named at once."""
    assert "users" in (await desk.ask("user")).json["detail"]
    said = (await desk.ask(conditions={"country": 7, "town": "x"})).json
    assert len(said["problems"]) == 2


async def test_the_receiver_of_the_end_has_to_be_there(desk: ReportApi) -> None:
    """Then the record names it, and its message waits in the outbox when the report is over."""
    receiver = {"url": "https://example.org/hook"}
    assert (await desk.api.admin.send("PUT", "/v1/alerts/receivers/desk", receiver)).status == 201
    report_id = await desk.asked(conditions={"country": "NL"}, notify="desk")
    assert (await desk.api.operator.post(f"/v1/reports/{report_id}/cancel")).status == 200
    rows = await desk.world.pool.fetch("SELECT destination, payload ->> 'status' AS status FROM tickwright.outbox")
    assert [(row["destination"], row["status"]) for row in rows] == [("alert:desk", "cancelled")]


async def test_a_cancelled_report_ends_at_once_and_for_good(desk: ReportApi) -> None:
    """Its parts are dropped, twice is harmless, one that ended by itself is 409, and the audit trail has one line."""
    report_id = await desk.asked(conditions={"country": "NL"})
    path = f"/v1/reports/{report_id}/cancel"
    for _ in range(2):
        answer = await desk.api.operator.post(path)
        assert (answer.status, answer.json["status"]) == (200, "cancelled")
    async with desk.world.process({"users": users}):
        done = await desk.asked(conditions={"country": "BE"})
        await desk.world.finished(done)
    assert [part["state"] for part in (await desk.get(f"/{report_id}"))["parts"]] == ["dropped"]
    said = (await desk.api.operator.post(f"/v1/reports/{done}/cancel")).says(409, "report_over")
    assert said.json["state"] == "finished"
    (await desk.api.operator.post("/v1/reports/999/cancel")).says(404, "report_not_found")
    trail = (await desk.api.viewer.get("/v1/audit?action=reports.cancel")).json["items"]
    assert [(line["actor"], line["subject"]) for line in trail] == [("operator", f"report:{report_id}")]
    asked = (await desk.api.viewer.get("/v1/audit?action=reports.request")).json["items"]
    assert [line["subject"] for line in asked] == [f"report:{done}", f"report:{report_id}"]


async def test_the_download_centre_pages_through_what_one_asks_for(desk: ReportApi) -> None:
    """Newest first, by requester, department, type and status; a cursor belongs to its filter."""
    await desk.put("other", {"listeners": {"users": {}}, "parameters": {"country": "text"}})
    made = [
        await desk.asked(
            "other" if n % 3 == 0 else "users",
            conditions={"country": f"c{n}"},
            requester=f"r{n % 2}",
            department="sales" if n < 4 else None,
        )
        for n in range(9)
    ]
    await desk.api.operator.post(f"/v1/reports/{made[8]}/cancel")

    async def pages(query: str) -> list[int]:
        found, cursor = [], ""
        while True:
            page = await desk.get(f"?limit=2&{query}{cursor}")
            found += [item["id"] for item in page["items"]]
            if page["next"] is None:
                return found
            cursor = f"&cursor={page['next']}"

    assert await pages("") == made[::-1]
    assert await pages("requester=r1") == made[7::-2]
    assert await pages("department=sales") == made[3::-1]
    assert await pages("type=other&requester=r0") == [made[6], made[0]]
    assert await pages("status=cancelled") == [made[8]]
    assert await pages("status=pending&status=failed&requester=r0") == [made[6], made[4], made[2], made[0]]
    assert await pages("requester=nobody") == []
    cursor = (await desk.get("?limit=2"))["next"]
    (await desk.api.viewer.get(f"/v1/reports?requester=r1&cursor={cursor}")).says(400, "invalid_cursor")
    (await desk.api.viewer.get("/v1/reports?status=done")).says(422, "invalid_parameter")


async def test_a_viewer_looks_and_asks_for_nothing(desk: ReportApi) -> None:
    """Reports read data that a viewer's key does not open by itself: asking, cancelling and delivering need more."""
    report_id = await desk.asked(conditions={"country": "NL"})
    (await desk.ask(client=desk.api.viewer, conditions={"country": "DE"})).says(403, "forbidden")
    (await desk.api.viewer.post(f"/v1/reports/{report_id}/cancel")).says(403, "forbidden")
    assert (await desk.get(f"/{report_id}"))["id"] == report_id
    (await desk.api.viewer.get("/v1/reports/999")).says(404, "report_not_found")


async def test_explain_says_whom_a_report_waits_for(desk: ReportApi) -> None:
    """Nobody lives; then somebody who cannot bring it; then somebody who can; then it is finished."""
    report_id = await desk.asked(conditions={"country": "NL"})

    async def codes() -> list[str]:
        return [reason["code"] for reason in (await desk.get(f"/{report_id}/explain"))["reasons"]]

    assert await codes() == ["nobody_serves", "no_listener", "next_check", "deadline"]
    async with desk.world.process({}) as process:
        assert await codes() == ["nobody_serves", "next_check", "deadline"]
        process.session.facts["serves"] = ["source:plt_user", "function:users"]
        await process.session.renew()
        assert (await codes())[0] == "part_due"
    async with desk.world.process({"users": users}):
        await desk.world.finished(report_id)
    assert await codes() == ["finished", "file_kept"]
    (await desk.api.viewer.get("/v1/reports/999/explain")).says(404, "report_not_found")
