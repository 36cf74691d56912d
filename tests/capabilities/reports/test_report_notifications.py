"""The end of a report is sent to its receiver over HTTP, signed as in Standard Webhooks, by the roles as they run."""

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
    made.report("scores", listeners=["broken"], notify="ops")(lambda: None)
    return made


async def ask(node: Node, **body: Any) -> int:
    """Ask for a report, as the API does."""
    return (await node.installation.of(ReportsService).records.request(msgspec.convert(body, ReportRequestBody), ME)).id


def read(secret: str, one: Received) -> Any:
    """Verify a message with this secret, by the specification's own library, and return its content."""
    return Webhook(secret).verify(one.body, {name.lower(): value for name, value in one.headers.items()})


def ends(receiver: HttpReceiver, secret: str) -> list[tuple[Received, Any]]:
    """Return the notifications of ended reports, without those of alerts, which a failed report raises as well."""
    messages = [(one, read(secret, one)) for one in receiver.received]
    return [(one, content) for one, content in messages if "report_id" in content]


async def test_the_end_of_a_report_is_notified_over_http_and_signed(database_url: str, tmp_path: Path) -> None:
    """One for each, finished or failed, with the file's path or the error; another secret does not verify it."""
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
            secret = (await receivers.put("ops", ReceiverRequest(url=receiver.url), caller=ADMIN)).secret
            assert secret is not None
            finished, failed = await ask(node, type="users", notify="ops"), await ask(node, type="scores")
            await eventually_async(lambda: len(ends(receiver, secret)) == 2, 60, what="both notifications arrive")
        finally:
            node.supervisor.request_stop()
            await work
        notified = {content["report_id"]: (one.id, content) for one, content in ends(receiver, secret)}
        (good_id, good), (bad_id, bad) = notified[finished], notified[failed]
        assert (good["event"], good["type"], good["rows"], good["error"]) == ("report.finished", "users", 1, None)
        assert good["file"] == f"/v1/reports/{finished}/file"
        assert good["checksum"] is not None
        assert (bad["event"], bad["error_code"], bad["file"]) == ("report.failed", "part_failed", None)
        assert "there is no table of scores" in bad["error"]
        assert good_id != bad_id
        with pytest.raises(WebhookVerificationError):
            read("whsec_" + "x" * 43 + "=", receiver.received[0])
