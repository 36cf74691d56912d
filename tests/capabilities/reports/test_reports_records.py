"""Reports over REST: requested, shown, listed, cancelled."""

from typing import Any

from kit.report_api import ReportApi, users

REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"type": "user"}, 422, "unknown_report_type"),
    ({"type": "users", "conditions": {}}, 422, "invalid_conditions"),
    ({"type": "users", "conditions": {"country": 7, "town": "x"}}, 422, "invalid_conditions"),
    ({"type": "users", "conditions": {"country": "NL"}, "format": "xlsx"}, 422, "invalid_value"),
    ({"type": "users", "conditions": {"country": "NL"}, "notify": "unknown"}, 422, "receiver_not_found"),
    ({"type": "users", "conditions": {"country": "NL"}, "status": "finished"}, 400, "unknown_field"),
    ({"type": "users", "conditions": {"country": "x" * 20_000}}, 413, "conditions_too_large"),
    ({"type": "users", "conditions": {"country": "NL"}, "requester": ""}, 422, "invalid_value"),
    ({"type": "users", "conditions": {"country": "NL"}, "max_age": "5"}, 422, "invalid_duration"),
]


async def test_a_request_is_answered_with_the_record_before_the_file_exists(reports_api: ReportApi) -> None:
    """201 with the record, even without a listener process; later progress, file, manifest, times and figures."""
    answer = await reports_api.ask(conditions={"country": "NL"}, department="sales", source="crm")
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
    async with reports_api.world.process({"users": users}):
        await reports_api.world.finished(made["id"])
    seen = await reports_api.get(f"/{made['id']}")
    assert (seen["status"], seen["parts_done"], seen["rows"]) == ("finished", 1, 2)
    assert seen["file"] == f"/v1/reports/{made['id']}/file"
    assert seen["manifest"]["complete"] is True
    assert [(part["listener"], part["state"], part["rows"], part["attempts"]) for part in seen["parts"]] == [
        ("users", "done", 2, 1)
    ]
    assert seen["created_at"] <= seen["started_at"] <= seen["last_part_at"] <= seen["finished_at"]
    assert len(seen["checksum"]) == len(seen["query_key"]) == 64


async def test_an_equal_request_over_rest_returns_the_record_of_the_first(reports_api: ReportApi) -> None:
    """Same requester, type, format and conditions while it runs: 200 and that record. Anything else: a new one."""
    first = await reports_api.asked(conditions={"country": "NL"})
    again = await reports_api.ask(conditions={"country": "N" + "L"}, department="other")
    assert (again.status, again.json["created"], again.json["id"]) == (200, False, first)
    others = [
        await reports_api.asked(conditions={"country": "DE"}),
        await reports_api.asked(conditions={"country": "NL"}, format="parquet"),
        await reports_api.asked(conditions={"country": "NL"}, requester="other"),
    ]
    assert len({first, *others}) == 4
    await reports_api.api.operator.post(f"/v1/reports/{first}/cancel")
    assert await reports_api.asked(conditions={"country": "NL"}) not in {first, *others}


async def test_a_request_with_max_age_returns_a_recent_finished_report(reports_api: ReportApi) -> None:
    """``max_age``: same requester and key, not older, file there in its full size; else a new one is made."""
    first = await reports_api.finished(conditions={"country": "NL"})
    again = await reports_api.ask(conditions={"country": "NL"}, max_age="1h")
    assert (again.status, again.json["created"], again.json["id"]) == (200, False, first)
    assert (await reports_api.ask(conditions={"country": "NL"}, max_age="1h", requester="me")).status == 201
    row = await reports_api.world.record(first)
    await reports_api.world.objects.delete([row["file_key"]])
    assert (await reports_api.ask(conditions={"country": "NL"}, max_age="1h")).status == 201


async def test_a_request_does_not_return_a_report_older_than_max_age(reports_api: ReportApi) -> None:
    """A new report is made."""
    first = await reports_api.finished(conditions={"country": "NL"})
    assert await reports_api.asked(conditions={"country": "NL"}, max_age="0s") != first


async def test_an_invalid_request_is_refused_at_once(reports_api: ReportApi) -> None:
    """With a stable code, before anything is written."""
    for body, status, code in REFUSED:
        (await reports_api.api.operator.post("/v1/reports", body)).says(status, code)
    assert (await reports_api.get(""))["items"] == []


async def test_the_error_for_an_unknown_type_names_the_nearest_one(reports_api: ReportApi) -> None:
    """All mistakes in conditions are named at once, as well."""
    assert "users" in (await reports_api.ask("user")).json["detail"]
    problem = (await reports_api.ask(conditions={"country": 7, "town": "x"})).json
    assert len(problem["problems"]) == 2


async def test_the_end_of_a_report_is_sent_to_its_receiver(reports_api: ReportApi) -> None:
    """Its message is in the outbox when the report has ended."""
    receiver = {"url": "https://example.org/hook"}
    assert (await reports_api.api.admin.send("PUT", "/v1/alerts/receivers/ops", receiver)).status == 201
    report_id = await reports_api.asked(conditions={"country": "NL"}, notify="ops")
    assert (await reports_api.api.operator.post(f"/v1/reports/{report_id}/cancel")).status == 200
    rows = await reports_api.world.pool.fetch(
        "SELECT destination, payload ->> 'status' AS status FROM tickwright.outbox"
    )
    assert [(row["destination"], row["status"]) for row in rows] == [("alert:ops", "cancelled")]


async def test_a_cancelled_report_ends_at_once_and_for_good(reports_api: ReportApi) -> None:
    """Its parts are dropped; a second cancel is harmless; a finished report is a 409; the audit trail has one line."""
    report_id = await reports_api.asked(conditions={"country": "NL"})
    path = f"/v1/reports/{report_id}/cancel"
    for _ in range(2):
        answer = await reports_api.api.operator.post(path)
        assert (answer.status, answer.json["status"]) == (200, "cancelled")
    async with reports_api.world.process({"users": users}):
        done = await reports_api.asked(conditions={"country": "BE"})
        await reports_api.world.finished(done)
    assert [part["state"] for part in (await reports_api.get(f"/{report_id}"))["parts"]] == ["dropped"]
    refused = (await reports_api.api.operator.post(f"/v1/reports/{done}/cancel")).says(409, "report_over")
    assert refused.json["state"] == "finished"
    (await reports_api.api.operator.post("/v1/reports/999/cancel")).says(404, "report_not_found")
    trail = (await reports_api.api.viewer.get("/v1/audit?action=reports.cancel")).json["items"]
    assert [(line["actor"], line["subject"]) for line in trail] == [("operator", f"report:{report_id}")]
    asked = (await reports_api.api.viewer.get("/v1/audit?action=reports.request")).json["items"]
    assert [line["subject"] for line in asked] == [f"report:{done}", f"report:{report_id}"]


async def test_reports_are_listed_page_by_page_by_filter(reports_api: ReportApi) -> None:
    """Newest first, by requester, department, type and status; a cursor belongs to its filter."""
    await reports_api.put("other", {"listeners": {"users": {}}, "parameters": {"country": "text"}})
    made = [
        await reports_api.asked(
            "other" if n % 3 == 0 else "users",
            conditions={"country": f"c{n}"},
            requester=f"r{n % 2}",
            department="sales" if n < 4 else None,
        )
        for n in range(9)
    ]
    await reports_api.api.operator.post(f"/v1/reports/{made[8]}/cancel")

    async def pages(query: str) -> list[int]:
        found, cursor = [], ""
        while True:
            page = await reports_api.get(f"?limit=2&{query}{cursor}")
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
    assert await pages("requester=unknown") == []
    cursor = (await reports_api.get("?limit=2"))["next"]
    (await reports_api.api.viewer.get(f"/v1/reports?requester=r1&cursor={cursor}")).says(400, "invalid_cursor")
    (await reports_api.api.viewer.get("/v1/reports?status=done")).says(422, "invalid_parameter")


async def test_a_viewer_sees_reports_and_may_not_request_or_cancel_one(reports_api: ReportApi) -> None:
    """Reports read data that a viewer's key alone does not open, so requests and cancels need another role."""
    report_id = await reports_api.asked(conditions={"country": "NL"})
    (await reports_api.ask(client=reports_api.api.viewer, conditions={"country": "DE"})).says(403, "forbidden")
    (await reports_api.api.viewer.post(f"/v1/reports/{report_id}/cancel")).says(403, "forbidden")
    assert (await reports_api.get(f"/{report_id}"))["id"] == report_id
    (await reports_api.api.viewer.get("/v1/reports/999")).says(404, "report_not_found")


async def test_explain_names_what_a_report_waits_for(reports_api: ReportApi) -> None:
    """Without a process; with one that does not serve the part; with one that does; when it is finished."""
    report_id = await reports_api.asked(conditions={"country": "NL"})

    async def codes() -> list[str]:
        return [reason["code"] for reason in (await reports_api.get(f"/{report_id}/explain"))["reasons"]]

    assert await codes() == ["nobody_serves", "no_listener", "next_check", "deadline"]
    async with reports_api.world.process({}) as process:
        assert await codes() == ["nobody_serves", "next_check", "deadline"]
        process.session.facts["serves"] = ["source:plt_user", "function:users"]
        await process.session.renew()
        assert (await codes())[0] == "part_due"
    async with reports_api.world.process({"users": users}):
        await reports_api.world.finished(report_id)
    assert await codes() == ["finished", "file_kept"]
    (await reports_api.api.viewer.get("/v1/reports/999/explain")).says(404, "report_not_found")
