"""Who asked for a report hears of its end: over HTTP, signed as Standard Webhooks say, by the roles as they run."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr
from standardwebhooks import Webhook, WebhookVerificationError

from kit.alerts import RULES
from kit.api import ADMIN
from kit.receivers import HttpReceiver, Received
from kit.waiting import eventually_async
from tickwright import ReportRequest
from tickwright.app.declarations import Declarations
from tickwright.capabilities.operations.alerts.receivers import AlertReceivers, ReceiverRequest
from tickwright.capabilities.reports.requests.views import ReportRequestBody
from tickwright.capabilities.reports.service import ReportsService
from tickwright.domain.errors import Rejected
from tickwright.plugin.settings import Bind, Settings
from tickwright.ports.caller import Caller, Role
from tickwright.process.installation import target_check
from tickwright.process.node import Node, open_node

ME = Caller("me", Role.OPERATOR)


def program() -> Declarations:
    """Return a program with one report that is made and one that cannot be."""
    made = Declarations()

    @made.listener("users")
    async def users(_: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        yield {"id": 1, "name": "ann"}

    @made.listener("broken")
    async def broken(request: ReportRequest) -> AsyncIterator[dict[str, Any]]:
        if request.attempt:
            raise Rejected("no_such_table", "there is no table of scores")
        yield {}

    made.report("users", listeners=["users"])(lambda: None)
    made.report("scores", listeners=["broken"], notify="desk")(lambda: None)
    return made


async def ask(node: Node, **body: Any) -> int:
    """Ask for a report, as the API does."""
    return (await node.installation.of(ReportsService).records.request(msgspec.convert(body, ReportRequestBody), ME)).id


def read(secret: str, one: Received) -> Any:
    """Return what the receiver reads who knows this secret, by the specification's own library."""
    return Webhook(secret).verify(one.body, {name.lower(): value for name, value in one.headers.items()})


def ends(receiver: HttpReceiver, secret: str) -> list[tuple[Received, Any]]:
    """Return what was told of ends of reports; a failed one is an alert as well, which receivers hear in its time."""
    told = [(one, read(secret, one)) for one in receiver.received]
    return [(one, said) for one, said in told if "report_id" in said]


async def test_the_end_of_a_report_is_told_over_http_signed(database_url: str, tmp_path: Path) -> None:
    """Once for each, finished and failed, with where the file is and why there is none; nobody else can forge it."""
    settings = Settings(
        database_url=SecretStr(database_url), home=tmp_path, metrics_bind=Bind("127.0.0.1", 0),
        allow_targets="127.0.0.1", lease=timedelta(seconds=2),
    )  # fmt: skip
    registrations = program().registrations
    async with (
        HttpReceiver() as receiver,
        open_node(settings, ("report-listener", "relay"), registrations=registrations, any_port=True) as node,
    ):
        work = asyncio.create_task(node.run(signals=False))
        try:
            receivers = AlertReceivers(node.installation.pool, target_check(settings), RULES)
            secret = (await receivers.put("desk", ReceiverRequest(url=receiver.url), caller=ADMIN)).secret
            assert secret is not None
            finished, failed = await ask(node, type="users", notify="desk"), await ask(node, type="scores")
            await eventually_async(lambda: len(ends(receiver, secret)) == 2, 60, what="both ends are told")
        finally:
            node.supervisor.request()
            await work
        told = {said["report_id"]: (one.id, said) for one, said in ends(receiver, secret)}
        (good_id, good), (bad_id, bad) = told[finished], told[failed]
        assert (good["event"], good["type"], good["rows"], good["error"]) == ("report.finished", "users", 1, None)
        assert good["file"] == f"/v1/reports/{finished}/file"
        assert good["checksum"] is not None
        assert (bad["event"], bad["error_code"], bad["file"]) == ("report.failed", "part_failed", None)
        assert "there is no table of scores" in bad["error"]
        assert good_id != bad_id
        with pytest.raises(WebhookVerificationError):
            read("whsec_" + "x" * 43 + "=", receiver.received[0])
