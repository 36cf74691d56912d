"""Receivers of alerts: one signed message per change, in order, also after an outage; no secret is shown."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from kit.alerts import RULES
from kit.api import ADMIN, RunningApi, running_api
from kit.cli import environment, tickwright
from kit.leases import LONG
from kit.receivers import HttpReceiver, Received
from kit.relays import RelayWorld, relay_world
from kit.waiting import eventually_async
from tickwright.capabilities.operations.alerts import receivers as alert_receivers
from tickwright.capabilities.operations.alerts.alerting import Alerting
from tickwright.capabilities.operations.alerts.receivers import AlertReceivers, ReceiverRequest
from tickwright.domain.errors import Rejected
from tickwright.engine.leases import Lease, Leases
from tickwright.plugin.settings import Settings
from tickwright.process.installation import target_check
from tickwright.store.pool import UNAVAILABLE
from tickwright.transports.http.broker import ReceiverBroker

WATCHED = tuple(rule for rule in RULES if rule.name in {"task_type_gone", "threads_stuck"})
TYPE = "INSERT INTO tickwright.task_types (name, target) VALUES ($1, 'python:x')"
GONE = "UPDATE tickwright.task_types SET gone_at = now() WHERE name = $1"
BACK = "UPDATE tickwright.task_types SET gone_at = NULL WHERE name = $1"


class AlertWorld:
    """A relay's world with receivers of alerts, and an alerting loop of which a test runs single rounds."""

    def __init__(self, relays: RelayWorld, lease: Lease, allow_target: Any) -> None:
        self.relays, self.pool, self.http = relays, relays.pool, relays.receiver
        self.receivers = AlertReceivers(relays.pool, allow_target, RULES)
        self.lease = lease
        self.loop = Alerting(Leases(relays.pool, owner="test"), rules=WATCHED)
        self.brokers = {**relays.brokers, "alert": ReceiverBroker(relays.brokers["http"], self.receivers)}

    async def put(self, name: str = "ops", **more: Any) -> str:
        """Put a new receiver and return its secret."""
        wanted = ReceiverRequest(**{"url": self.http.url, **more})
        secret = (await self.receivers.put(name, wanted, caller=ADMIN)).secret
        assert secret is not None
        return secret

    async def round(self) -> None:
        """Evaluate the rules once."""
        await self.loop.round(self.lease)

    async def fire(self, name: str = "mail") -> None:
        """Let an alert about the task type fire."""
        if not await self.pool.fetchval("SELECT count(*) FROM tickwright.task_types WHERE name = $1", name):
            await self.pool.execute(TYPE, name)
        await self.pool.execute(GONE, name)
        await self.round()

    async def resolve(self, name: str = "mail") -> None:
        """Let it be resolved."""
        await self.pool.execute(BACK, name)
        await self.round()

    async def deliver(self) -> None:
        """Run a relay until nothing waits."""
        async with self.relays.running(self.relays.relay(brokers=self.brokers)):
            await self.relays.emptied()

    def received_events(self) -> list[tuple[str, str]]:
        """Event and subject of the received messages, in order."""
        bodies = [json.loads(one.body) for one in self.http.received]
        return [(body["event"], body["subject"]) for body in bodies]


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[AlertWorld]:
    """A world in which loopback may be reached."""
    async with relay_world(database_url) as relays:
        lease = await Leases(relays.pool, owner="test", terms=LONG).take("alerting")
        assert lease is not None
        yield AlertWorld(relays, lease, target_check(Settings(allow_targets="127.0.0.1")))


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[RunningApi]:
    """A running API that allows loopback and public addresses."""
    async with running_api(database_url, allow_target=target_check(Settings(allow_targets="127.0.0.1"))) as running:
        yield running


def verified(secret: str, one: Received) -> Any:
    """Return what a receiver with this secret reads."""
    return Webhook(secret).verify(one.body, lowered(one.headers))


def lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers in lower case, as a framework does."""
    return {name.lower(): value for name, value in headers.items()}


async def test_a_receiver_gets_a_signed_message_at_the_start_and_end_of_an_alert(world: AlertWorld) -> None:
    """One message per change, however often it is evaluated; the specification's library accepts the signature."""
    secret = await world.put()
    await world.fire()
    await world.round()
    await world.round()
    await world.resolve()
    await world.round()
    await world.deliver()
    fired, resolved = (verified(secret, one) for one in world.http.received)
    alert = await world.pool.fetchrow("SELECT * FROM tickwright.alerts")
    assert alert is not None
    facts = json.loads(alert["facts"])
    same = {
        "version": 1, "alert_id": alert["id"], "rule": "task_type_gone", "subject": "mail", "severity": "warning",
        "summary": alert["summary"], "facts": facts,
    }  # fmt: skip
    assert fired == {**same, "event": "fired", "at": fired["at"]}
    assert resolved == {**same, "event": "resolved", "at": resolved["at"]}
    assert fired["at"] < resolved["at"]
    assert len({one.id for one in world.http.received}) == 2
    with pytest.raises(WebhookVerificationError):
        verified("whsec_" + "x" * 43 + "=", world.http.received[0])


async def test_of_many_alerts_at_once_twenty_are_sent_and_the_number_of_the_rest(world: AlertWorld) -> None:
    """The last of them has the number; these are sent again when they are resolved, and the others are not."""
    await world.put()
    await world.pool.execute(
        "INSERT INTO tickwright.task_types (name, target, gone_at) "
        "SELECT 't' || n, 'python:x', now() FROM generate_series(1, 50) AS n"
    )
    await world.round()
    await world.fire("later")
    await world.pool.execute("UPDATE tickwright.task_types SET gone_at = NULL")
    await world.round()
    await world.deliver()
    bodies = [json.loads(one.body) for one in world.http.received]
    fired, resolved = (
        {one["subject"]: one for one in bodies if one["event"] == event} for event in ("fired", "resolved")
    )
    assert len(bodies) == 2 * 21
    assert set(fired) == set(resolved)
    assert "later" in fired
    [last] = [one for one in bodies if "more" in one]
    assert last["more"] == 30
    assert last["summary"].endswith(" And 30 more like this: see tickwright alerts.")


async def test_a_second_fault_is_sent_again(world: AlertWorld) -> None:
    """An alert that fires after it was resolved is a new alert, and a new message."""
    await world.put()
    for _ in range(2):
        await world.fire()
        await world.resolve()
    await world.deliver()
    assert world.received_events() == [("fired", "mail"), ("resolved", "mail")] * 2
    assert len({json.loads(one.body)["alert_id"] for one in world.http.received}) == 2


async def test_a_receiver_gets_messages_of_its_rules_and_severities_only(world: AlertWorld) -> None:
    """A row is written only for receivers with that filter; several receivers have a row each."""
    await world.put("all")
    await world.put("critical", severity_min="critical")
    await world.put("warnings", severity_min="warning")
    await world.put("other", rules=["no_live_worker", "threads_stuck"])
    await world.put("this", rules=["task_type_gone"])
    await world.fire()
    rows = await world.pool.fetch("SELECT destination, key FROM tickwright.outbox ORDER BY id")
    assert [row["destination"] for row in rows] == ["alert:all", "alert:this", "alert:warnings"]
    assert {row["key"] for row in rows} == {"task_type_gone/mail"}


@pytest.mark.parametrize("how", ["refuses", "is dead"])
async def test_a_receiver_that_is_down_gets_all_of_it_later_and_in_order(world: AlertWorld, how: str) -> None:
    """Nothing is lost during its outage; each alert's messages arrive in the order of the changes, one of each."""
    await world.put()
    if how == "refuses":
        world.http.status = 503
    else:
        await world.http.stop()
    changes = [world.fire, world.resolve, world.fire, world.resolve]
    async with world.relays.running(world.relays.relay(brokers=world.brokers)):
        for change in changes:
            await change()
            await change("other")

        async def tried() -> Any:
            return await world.pool.fetchval("SELECT max(attempts) > 1 FROM tickwright.outbox")

        await eventually_async(tried, what="an attempt failed twice")
        assert await world.relays.left() == 8
        seen = len(world.http.received)
        if how == "refuses":
            world.http.status = 200
        else:
            async with HttpReceiver() as successor:  # a receiver with a new address: waiting messages follow it
                await world.receivers.put("ops", ReceiverRequest(url=successor.url), caller=ADMIN)
                await world.relays.emptied()
                world.http.received[seen:] = successor.received
        await world.relays.emptied()
    received_events = [
        (json.loads(one.body)["event"], json.loads(one.body)["subject"], one.id) for one in world.http.received
    ]
    last = list({message_id: (event, subject) for event, subject, message_id in received_events[seen:]}.items())
    assert len(last) == len(received_events[seen:]) == 8, "each was accepted once"
    for subject in ("mail", "other"):
        assert [event for _, (event, about) in last if about == subject] == ["fired", "resolved"] * 2
    assert len({message_id for _, _, message_id in received_events}) == 8, "equal on every attempt"


class RefusesAtFirst(HttpReceiver):
    """Refuses messages of firing alerts until they are sent again; ``accepted`` has what it accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.accepted: list[str] = []

    async def _receive(self, request: web.Request) -> web.Response:
        before = {one.id for one in self.received}
        event = (await request.json())["event"]
        self.status = 503 if event == "fired" and request.headers["webhook-id"] not in before else 200
        if self.status == 200:
            self.accepted.append(event)
        return await super()._receive(request)


async def test_an_alerts_end_is_never_sent_before_its_start(world: AlertWorld) -> None:
    """While a message is being retried, later ones of the same rule and subject wait for it."""
    async with RefusesAtFirst() as receiver:
        await world.put(url=receiver.url)
        for change in (world.fire, world.resolve, world.fire, world.resolve):
            await change()
        await world.deliver()
    assert receiver.accepted == ["fired", "resolved"] * 2


async def test_a_round_that_is_cut_off_sends_nothing_and_the_next_one_sends_once(world: AlertWorld) -> None:
    """The alert and its messages are one transaction: both are there, or neither."""
    await world.put()
    await world.pool.execute(TYPE, "mail")
    await world.pool.execute(GONE, "mail")
    async with world.pool.acquire() as other:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("LOCK TABLE tickwright.alert_receivers IN ACCESS EXCLUSIVE MODE")
        cut_off = asyncio.create_task(world.round())

        async def waiting() -> Any:
            return await world.pool.fetchval(
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%tickwright.outbox%' "
                "AND datname = current_database() AND pid <> pg_backend_pid()"
            )

        pid = await eventually_async(waiting, what="the round writes messages")
        await world.pool.execute("SELECT pg_terminate_backend($1)", pid)
        with pytest.raises(UNAVAILABLE):
            await cut_off
        await transaction.rollback()
    assert await world.pool.fetchval("SELECT count(*) FROM tickwright.alerts") == 0
    assert await world.relays.left() == 0
    await world.round()
    await world.deliver()
    assert world.received_events() == [("fired", "mail")]


async def test_an_evaluator_without_the_lease_sends_nothing(world: AlertWorld) -> None:
    """There is neither an alert nor a message."""
    await world.put()
    await Leases(world.pool, owner="operator").break_lease("alerting")
    await world.fire()
    assert await world.relays.left() == 0


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://169.254.169.254/latest", "ssrf_blocked"),
        ("https://10.0.0.1/", "ssrf_blocked"),
        ("http://93.184.216.34/", "ssrf_blocked"),
        ("wss://example.org/", "invalid_target"),
        ("pg:alerts", "invalid_target"),
        ("https://user@example.org/", "invalid_target"),
    ],
)
async def test_a_url_that_may_not_be_reached_is_refused_when_it_is_put(world: AlertWorld, url: str, code: str) -> None:
    """The same check as for the target of a task type; nothing is stored."""
    with pytest.raises(Rejected) as caught:
        await world.put(url=url)
    assert caught.value.code == code
    assert await world.receivers.list() == []


async def test_a_message_to_a_url_that_is_no_longer_allowed_is_a_dead_letter(world: AlertWorld) -> None:
    """The address is checked again when a message is sent, whichever program wrote the row; nothing is connected to."""
    await world.put()
    await world.pool.execute("UPDATE tickwright.alert_receivers SET url = 'https://169.254.169.254/'")
    await world.fire()
    await world.deliver()
    [dead] = await world.relays.dead()
    assert dead["error_message"].startswith("ssrf_blocked: ")
    assert world.http.received == []


async def test_a_rotated_secret_signs_waiting_messages(world: AlertWorld) -> None:
    """Both secrets sign during the overlap; without one only the new one does."""
    first = await world.put()
    await world.fire()
    second = (await world.receivers.rotate_secret("ops", caller=ADMIN)).secret
    await world.deliver()
    third = (await world.receivers.rotate_secret("ops", caller=ADMIN, overlap=timedelta())).secret
    await world.resolve()
    await world.deliver()
    for secret in (first, second):
        assert verified(secret, world.http.received[0])["event"] == "fired"
        with pytest.raises(WebhookVerificationError):
            verified(secret, world.http.received[1])
    assert verified(third, world.http.received[1])["event"] == "resolved"


async def test_only_rows_to_a_receiver_get_its_signature(world: AlertWorld) -> None:
    """Rows to an address are unsigned, also to a receiver's; a row to a receiver is never sent unsigned."""
    await world.put()
    await world.relays.put(world.http.url)
    await world.deliver()
    assert "webhook-signature" not in lowered(world.http.received[0].headers)
    await world.pool.execute("DELETE FROM tickwright.alert_receiver_secrets")
    await world.fire()
    async with world.relays.running(world.relays.relay(brokers=world.brokers)):

        async def has_its_reason() -> Any:
            return await world.pool.fetchval(
                "SELECT error_message LIKE 'receiver_without_secret%' FROM tickwright.outbox"
            )

        await eventually_async(has_its_reason, what="the row waits with its reason")
    assert len(world.http.received) == 1


async def test_a_weak_lock_of_another_session_delays_no_change(world: AlertWorld) -> None:
    """As ``PREPARE`` of an ``INSERT`` takes in an open transaction, without a right to the table."""
    async with world.pool.acquire() as other, other.transaction():
        await other.execute("LOCK TABLE tickwright.alert_receivers IN ROW EXCLUSIVE MODE")
        await world.put()


async def test_concurrent_changes_keep_to_the_bound(world: AlertWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each change counts the ones before it."""
    monkeypatch.setattr(alert_receivers, "RECEIVERS_MAX", 3)
    done = await asyncio.gather(*(world.put(f"r{n}") for n in range(8)), return_exceptions=True)
    assert len(await world.receivers.list()) == 3
    assert {one.code for one in done if isinstance(one, Rejected)} == {"too_many_receivers"}


async def test_a_deleted_receiver_gets_no_more_messages(world: AlertWorld) -> None:
    """Its waiting messages are deleted with it; a later message to an unknown receiver is a dead letter."""
    await world.put()
    await world.put("kept")
    await world.fire()
    await world.receivers.delete("ops", caller=ADMIN)
    await world.relays.put("alert:ops")
    await world.deliver()
    assert world.received_events() == [("fired", "mail")]
    assert [row["error_message"].partition(":")[0] for row in await world.relays.dead()] == ["receiver_not_found"]


async def test_a_secret_is_shown_once_and_nowhere_else(api: RunningApi, capsys: pytest.CaptureFixture[str]) -> None:
    """Not in a listing, the audit trail, the outbox, another PUT, or the log; nor is the rest of the URL."""
    body = {"url": "https://example.org/hook/door-key"}
    made = (await api.admin.send("PUT", "/v1/alerts/receivers/ops", body)).json
    rotated = (await api.admin.post("/v1/alerts/receivers/ops/rotate-secret", {"overlap": "1h"})).json
    secrets = [made["secret"], rotated["secret"]]
    assert all(secret.startswith("whsec_") for secret in secrets)
    await api.pool.execute(
        "INSERT INTO tickwright.alerts (rule, subject, severity, summary, state) "
        "VALUES ('r', 's', 'info', 'x', 'firing')"
    )
    again = await api.admin.send("PUT", "/v1/alerts/receivers/ops", body)
    assert (again.status, again.json["secret"], again.json["created"]) == (200, None, False)
    paths = ["/v1/alerts/receivers", "/v1/alerts/receivers/ops", "/v1/audit", "/v1/outbox", "/v1/alerts"]
    shown = {path: (await api.admin.get(path)).body.decode() for path in paths}
    shown |= {"again": again.body.decode(), "logs": "".join(capsys.readouterr())}
    for where, text in shown.items():
        assert not any(secret in text or secret.removeprefix("whsec_") in text for secret in secrets), where
    assert "door-key" not in shown["/v1/audit"] + shown["/v1/outbox"]
    assert json.loads(shown["/v1/alerts/receivers"])["items"][0]["signing_secrets"] == 2


async def test_only_admins_see_and_change_receivers(api: RunningApi) -> None:
    """A URL may be a credential: viewers and operators see none."""
    for client in (api.viewer, api.operator):
        (await client.get("/v1/alerts/receivers")).says(403, "forbidden")
        (await client.get("/v1/alerts/receivers/ops")).says(403, "forbidden")
        (await client.send("PUT", "/v1/alerts/receivers/ops", {"url": "https://example.org"})).says(403, "forbidden")
        (await client.post("/v1/alerts/receivers/ops/rotate-secret")).says(403, "forbidden")
        (await client.send("DELETE", "/v1/alerts/receivers/ops")).says(403, "forbidden")


async def test_bad_input_is_refused(api: RunningApi) -> None:
    """Names, rules, severities and addresses have their bounds."""
    put = "/v1/alerts/receivers/ops"
    (await api.admin.send("PUT", put, {"url": "https://10.0.0.1/"})).says(422, "ssrf_blocked")
    (await api.admin.send("PUT", put, {"url": "https://e.org", "rules": ["nothing"]})).says(422, "unknown_rule")
    (await api.admin.send("PUT", "/v1/alerts/receivers/a%20b", {"url": "https://e.org"})).says(422, "invalid_receiver")
    assert (await api.admin.send("PUT", put, {"url": "https://e.org", "severity_min": "bad"})).status in {400, 422}
    assert (await api.admin.send("PUT", put, {"url": "https://e.org", "secret": "whsec_x"})).status in {400, 422}
    (await api.admin.send("DELETE", put)).says(404, "receiver_not_found")
    assert (await api.admin.get("/v1/alerts/receivers")).json["items"] == []


def test_commands_for_receivers(database_url: str) -> None:
    """Put, change one thing, list, rotate, delete; the secret is shown by the first put and by a rotation."""
    env = environment(DATABASE_URL=database_url)

    def ok(*arguments: str) -> Any:
        result = tickwright("alerts", *arguments, "--json", env=env)
        assert result.code == 0, result
        return result.json

    made = ok("receivers", "put", "ops", "--url", "https://example.org/a", "--rule", "lateness")
    assert made["secret"].startswith("whsec_")
    changed = ok("receivers", "put", "ops", "--severity", "critical")
    assert changed["secret"] is None
    receiver = changed["receiver"]
    assert (receiver["url"], receiver["rules"], receiver["severity_min"]) == (
        "https://example.org/a",
        ["lateness"],
        "critical",
    )
    assert ok("receivers", "put", "ops", "--every-rule")["receiver"]["rules"] is None
    assert ok("receivers", "rotate-secret", "ops")["secret"] != made["secret"]
    assert [one["name"] for one in ok("receivers", "list")["items"]] == ["ops"]
    assert ok()["items"] == []
    assert ok("receivers", "delete", "ops") == {"deleted": "ops"}
    assert tickwright("alerts", "receivers", "put", "new", env=env).code == 2
    refused = tickwright("alerts", "receivers", "put", "ops", "--url", "https://127.0.0.1/", "--json", env=env)
    assert (refused.code, refused.error["code"]) == (1, "ssrf_blocked")
