"""Dead letters in queues: entity tasks and calls of reports, shown and requeued, on a real RabbitMQ."""

import asyncio
import json
import re
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from kit.pages import Screen, Site, Visitors
from kit.rabbit_queues import raw_channel
from kit.rabbit_reports import Reports
from kit.rabbit_tasks import Fanout, taken
from kit.servers import PostgresServer, RabbitServer
from tickwright.transports.rabbitmq.topology import fanout_names, report_exchanges

CANARY = '<img src=x onerror="window.ran=1">'
BIG = 2**53 + 1
WORDS = {"fanout": "entity tasks", "reports": "report calls"}
TABS = {"fanout": "Entity tasks", "reports": "Report calls"}


class DeadLetters:
    """Makes dead letters, and reads the queues afterwards; the browser's loop runs in the test's thread."""

    def __init__(self, rabbit_url: str) -> None:
        self.prefix = f"t{uuid4().hex[:12]}"
        self.fanout, self.reports = Fanout(rabbit_url), Reports(rabbit_url)
        self.fanout.names = fanout_names(self.prefix)
        self.reports.shared = report_exchanges(self.prefix)
        self._run(self.fanout.prepare())
        self._run(self.reports.prepare("users", "tags"))

    @staticmethod
    def _run(work: Coroutine[Any, Any, Any]) -> Any:
        with ThreadPoolExecutor(1) as aside:
            return aside.submit(asyncio.run, work).result()

    def make_dead(self, kind: str, *ids: str, body: bytes = b"{}") -> None:
        """Make a dead letter of each id; calls of reports are for ``users``."""
        self._run(self._make_dead_tasks(ids, body) if kind == "fanout" else self._make_dead_calls(ids, body))

    async def _make_dead_tasks(self, ids: tuple[str, ...], body: bytes) -> None:
        async with self.fanout.consumer() as source:
            for one in ids:
                await self.fanout.put(one, body=body)
                assert await source.dead_letter(await taken(source), "no_handler", f"It has no handler. {CANARY}")

    async def _make_dead_calls(self, ids: tuple[str, ...], body: bytes) -> None:
        async with self.reports.consumer("users") as source:
            for one in ids:
                await self.reports.tell("users", one, body=body)
                assert await source.dead_letter(await taken(source), "unreadable", f"It is no call. {CANARY}")

    def requeued(self, kind: str) -> list[str | None]:
        """Take all messages out of the queue that consumers read; return their ids."""
        return self._taken_from(self._queues(kind)[0])

    def empty(self) -> None:
        """Recreate the queues: a message that the site still holds for a closed window would return to an old one."""
        self._run(self._renew())

    async def _renew(self) -> None:
        async with raw_channel(self.fanout.url) as channel:
            for kind in WORDS:
                for queue in self._queues(kind):
                    await channel.queue_delete(queue)
        await self.fanout.prepare()
        await self.reports.prepare("users", "tags")

    def _taken_from(self, queue: str) -> list[str | None]:
        found: list[str | None] = self._run(self.fanout.ids_in(queue))
        return found

    def _queues(self, kind: str) -> tuple[str, str]:
        if kind == "fanout":
            return self.fanout.names.queue, self.fanout.names.dead
        return self.reports.names("users").queue, self.reports.shared.dead

    def remove(self) -> None:
        """Remove queues and exchanges."""
        self._run(self.fanout.remove())
        self._run(self.reports.remove())


@pytest.fixture(scope="module")
def dead(rabbit_server: RabbitServer) -> Iterator[DeadLetters]:
    """Queues of these tests only; no process of the site reads them, so requeued messages stay."""
    made = DeadLetters(rabbit_server.url)
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def site(
    pg_server: PostgresServer, template_database: str, rabbit_server: RabbitServer, dead: DeadLetters
) -> Iterator[Site]:
    """An installation beside those queues, whose viewers do not see data of users."""
    name = "deadletters"
    made = Site(
        pg_server.create_database(name, template=template_database),
        roles=("worker", "api"),
        AMQP_URL=rabbit_server.url,
        AMQP_PREFIX=dead.prefix,
        PAYLOADS_FROM="operator",
    )
    try:
        made.start()
        yield made
    finally:
        made.destroy()
        pg_server.drop_database(name)


@pytest.fixture
def empty_queues(dead: DeadLetters) -> DeadLetters:
    """The same queues, emptied."""
    dead.empty()
    return dead


def body(kind: str) -> bytes:
    """Return a body with entity and module, and with a number beyond a double."""
    content: dict[str, Any] = {"report_id": BIG, "listeners": ["users"]}
    if kind == "fanout":
        content = {"EntityCode": "ACME", "TaskType": "TARIFFS", "big": BIG}
    return json.dumps(content).encode()


def opened(visit: Visitors, kind: str, role: str = "operator", more: str = "") -> Screen:
    """Return the view when its list is there."""
    screen = visit(role, f"/dead-letters?kind={kind}{more}")
    screen.page.get_by_role("table", name=f"Dead letters, {WORDS[kind]}").wait_for()
    return screen


def last_audit_entry(site: Site) -> dict[str, Any]:
    """Return the actor, subject and content of the last requeue in the audit trail."""
    sql = "SELECT actor, subject, after FROM tickwright.audit WHERE action = %s ORDER BY id DESC LIMIT 1"
    (row,) = site.sql(sql, "dead_letters.requeue")
    return row


@pytest.mark.matrix
@pytest.mark.parametrize("kind", WORDS)
def test_a_dead_letter_shows_its_reason_and_its_exact_body(
    visit: Visitors, empty_queues: DeadLetters, kind: str
) -> None:
    """Its entity links to its view; texts of users are not interpreted."""
    empty_queues.make_dead(kind, "a", body=body(kind))
    screen = visit("operator", "/dead-letters")
    screen.page.get_by_role("radiogroup", name="Kind").get_by_text(TABS[kind]).click()
    screen.page.wait_for_url(f"**kind={kind}")
    about = "ACME" if kind == "fanout" else str(BIG)
    screen.page.get_by_role("cell", name=about).click()
    drawer = screen.page.get_by_role("dialog")
    expect(drawer.get_by_label("body", exact=True)).to_contain_text(str(BIG))
    expect(drawer.get_by_role("link", name=about)).to_have_attribute("href", re.compile(f"={about}$"))
    expect(drawer.get_by_text(CANARY)).to_be_visible()
    assert screen.page.evaluate("window.ran") is None


def test_a_body_is_hidden_from_a_role_that_sees_no_data_of_users(visit: Visitors, empty_queues: DeadLetters) -> None:
    """A viewer sees the reason, and no button to requeue."""
    empty_queues.make_dead("fanout", "a", body=body("fanout"))
    screen = opened(visit, "fanout", "viewer", "&letter=a")
    screen.page.get_by_role("dialog").get_by_text("Hidden").wait_for()
    assert "ACME" not in screen.page.get_by_role("dialog").locator("pre").all_inner_texts()
    assert screen.page.get_by_role("button", name="Requeue").count() == 0


@pytest.mark.matrix
@pytest.mark.parametrize("kind", WORDS)
def test_the_chosen_dead_letters_are_requeued(
    visit: Visitors, site: Site, empty_queues: DeadLetters, kind: str
) -> None:
    """Only those, also where an id is all digits; the number is in the confirmation."""
    empty_queues.make_dead(kind, "a", "4711", "c", body=body(kind))
    screen = opened(visit, kind)
    for one in ("4711", "c"):
        screen.page.get_by_label(f"Choose {WORDS[kind][:-1]} {one}").check()
    screen.page.get_by_role("button", name=f"Requeue 2 {WORDS[kind]}", exact=True).click()
    screen.confirm(f"Requeue 2 {WORDS[kind]}")
    screen.page.get_by_text(f"2 {WORDS[kind]} requeued").wait_for()
    assert empty_queues.requeued(kind) == ["4711", "c"]
    assert last_audit_entry(site) == {"actor": "Olaf", "subject": kind, "after": {"ids": ["4711", "c"]}}
    expect(screen.page.locator("tbody tr")).to_have_count(1)


@pytest.mark.parametrize("kind", WORDS)
def test_all_dead_letters_are_requeued_after_a_confirmation_with_their_number(
    visit: Visitors, empty_queues: DeadLetters, kind: str
) -> None:
    """The oldest first."""
    empty_queues.make_dead(kind, "a", "b", "c", body=body(kind))
    screen = opened(visit, kind)
    screen.page.get_by_role("button", name=f"Requeue all 3 {WORDS[kind]}").click()
    screen.confirm(f"Requeue all 3 {WORDS[kind]}")
    screen.page.get_by_text(f"3 {WORDS[kind]} requeued").wait_for()
    assert empty_queues.requeued(kind) == ["a", "b", "c"]
    screen.page.get_by_text(f"No {WORDS[kind][:-1]} was given up").wait_for()


def test_a_dead_letter_after_the_confirmation_stays(visit: Visitors, empty_queues: DeadLetters) -> None:
    """Only the confirmed number is requeued, so that messages that die again at once make no endless loop."""
    empty_queues.make_dead("fanout", "a", "b", body=body("fanout"))
    screen = opened(visit, "fanout")
    screen.page.get_by_role("button", name="Requeue all 2 entity tasks").click()
    empty_queues.make_dead("fanout", "later", body=body("fanout"))
    screen.confirm("Requeue all 2 entity tasks")
    screen.page.get_by_text("2 entity tasks requeued").wait_for()
    assert empty_queues.requeued("fanout") == ["a", "b"]
    screen.page.locator('tr[data-key="later"]').wait_for()


def test_a_dead_letter_without_an_id_is_requeued_with_all_only(
    visit: Visitors, site: Site, empty_queues: DeadLetters
) -> None:
    """It cannot be named; an unreadable body is shown as it is. The client here gives each message an id."""
    empty_queues.make_dead("fanout", "a", body=b"\xff[1")
    content = site.ask("GET", "/v1/dead-letters/fanout")
    content["items"][0]["id"] = None
    screen = visit("operator", "/dead-letters")
    screen.page.route("**/v1/dead-letters/fanout?*", lambda route: route.fulfill(json=content))
    screen.open("/dead-letters?kind=fanout")
    screen.page.get_by_label("Choose entity task without id #1").check()
    expect(screen.page.get_by_role("button", name="Requeue", exact=True)).to_be_disabled()
    screen.page.get_by_role("cell", name="unreadable").click()
    expect(screen.page.get_by_label("body", exact=True)).to_have_text("\\xff[1")
    screen.page.keyboard.press("Escape")
    screen.page.get_by_label("Choose entity task without id #1").uncheck()
    screen.page.get_by_role("button", name="Requeue 1 entity task", exact=True).click()
    screen.confirm("Requeue 1 entity task")
    screen.page.get_by_text("1 entity task requeued").wait_for()
    assert empty_queues.requeued("fanout") == ["a"]


def test_a_filter_by_module_is_in_the_address(visit: Visitors, empty_queues: DeadLetters) -> None:
    """Then only chosen ones are requeued: the queue cannot select by module."""
    empty_queues.make_dead("fanout", "a", body=body("fanout"))
    empty_queues.make_dead("fanout", "b", body=b'{"EntityCode": "BETA", "TaskType": "CDRS"}')
    screen = opened(visit, "fanout", more="&subject=CDRS")
    expect(screen.page.locator("tbody tr")).to_have_count(1)
    screen.page.get_by_role("cell", name="BETA").wait_for()
    expect(screen.page.get_by_role("button", name="Requeue", exact=True)).to_be_disabled()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_queues_letters(
    visit: Visitors, empty_queues: DeadLetters, scheme: str
) -> None:
    """The list, and the drawer above it; nothing is wider than a phone."""
    empty_queues.make_dead("fanout", "a", body=body("fanout"))
    screen = visit("operator", "/dead-letters?kind=fanout&letter=a", scheme=scheme)
    screen.page.get_by_label("body", exact=True).wait_for()
    assert screen.findings() == []
    phone = visit("operator", "/dead-letters?kind=fanout", scheme=scheme, width=390, height=844)
    phone.page.get_by_role("table").wait_for()
    assert phone.findings() == []
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_an_unavailable_rabbitmq_is_shown_with_its_code(visit: Visitors, site: Site, empty_queues: DeadLetters) -> None:
    """The list shows the failure and offers a retry; other kinds work."""
    screen = visit("viewer", "/dead-letters")
    screen.may_complain = True
    screen.page.route(
        "**/v1/dead-letters/reports*",
        lambda route: route.fulfill(status=503, json={"code": "rabbitmq_unavailable", "detail": "It does not answer."}),
    )
    screen.open("/dead-letters?kind=reports")
    screen.page.get_by_text("rabbitmq_unavailable").wait_for(timeout=20_000)
    screen.page.get_by_role("radiogroup", name="Kind").get_by_text("Jobs").click()
    screen.page.get_by_text("No job was given up").wait_for()
