"""Dead letters that are in a queue: entity tasks and calls of reports, shown and put back, on a real RabbitMQ."""

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


class Dead:
    """What a test buries, and what it finds in the queues afterwards; the browser's loop runs in the test's thread."""

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

    def bury(self, kind: str, *ids: str, body: bytes = b"{}") -> None:
        """Bury a message under each id; calls of reports were for ``users``."""
        self._run(self._bury_tasks(ids, body) if kind == "fanout" else self._bury_calls(ids, body))

    async def _bury_tasks(self, ids: tuple[str, ...], body: bytes) -> None:
        async with self.fanout.consumer() as source:
            for one in ids:
                await self.fanout.put(one, body=body)
                assert await source.dead_letter(await taken(source), "no_handler", f"Nobody handles it. {CANARY}")

    async def _bury_calls(self, ids: tuple[str, ...], body: bytes) -> None:
        async with self.reports.consumer("users") as source:
            for one in ids:
                await self.reports.tell("users", one, body=body)
                assert await source.dead_letter(await taken(source), "unreadable", f"It is no call. {CANARY}")

    def put_back(self, kind: str) -> list[str | None]:
        """Take everything out of the queue that consumers read; return whose ids."""
        return self._taken_from(self._queues(kind)[0])

    def empty(self) -> None:
        """Make the queues anew: what the site still looks at, for a window that is closed, would come back."""
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
def dead(rabbit_server: RabbitServer) -> Iterator[Dead]:
    """Queues of these tests' own; no process of the site reads them, so what is put back stays."""
    made = Dead(rabbit_server.url)
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def site(pg_server: PostgresServer, template_database: str, rabbit_server: RabbitServer, dead: Dead) -> Iterator[Site]:
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
def task(dead: Dead) -> Dead:
    """The same queues, with nothing in them."""
    dead.empty()
    return dead


def body(kind: str) -> bytes:
    """Return a body that says what it is about, with a number that a browser cannot hold."""
    said: dict[str, Any] = {"report_id": BIG, "listeners": ["users"]}
    if kind == "fanout":
        said = {"EntityCode": "ACME", "TaskType": "TARIFFS", "big": BIG}
    return json.dumps(said).encode()


def opened(visit: Visitors, kind: str, role: str = "operator", more: str = "") -> Screen:
    """Return the view when its list is there."""
    screen = visit(role, f"/dead-letters?kind={kind}{more}")
    screen.page.get_by_role("table", name=f"Dead letters, {WORDS[kind]}").wait_for()
    return screen


def last_line(site: Site) -> dict[str, Any]:
    """Return who put what back."""
    sql = "SELECT actor, subject, after FROM tickwright.audit WHERE action = %s ORDER BY id DESC LIMIT 1"
    (row,) = site.sql(sql, "dead_letters.requeue")
    return row


@pytest.mark.matrix
@pytest.mark.parametrize("kind", WORDS)
def test_a_dead_letter_says_why_and_shows_its_body_digit_by_digit(visit: Visitors, task: Dead, kind: str) -> None:
    """What it is about leads to its view; words of others are text."""
    task.bury(kind, "a", body=body(kind))
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


def test_a_body_is_hidden_from_who_sees_no_data_of_users(visit: Visitors, task: Dead) -> None:
    """He reads why it died, and is offered no way to put it back."""
    task.bury("fanout", "a", body=body("fanout"))
    screen = opened(visit, "fanout", "viewer", "&letter=a")
    screen.page.get_by_role("dialog").get_by_text("Hidden").wait_for()
    assert "ACME" not in screen.page.get_by_role("dialog").locator("pre").all_inner_texts()
    assert screen.page.get_by_role("button", name="Requeue").count() == 0


@pytest.mark.matrix
@pytest.mark.parametrize("kind", WORDS)
def test_the_chosen_ones_go_back(visit: Visitors, site: Site, task: Dead, kind: str) -> None:
    """Only they, also where an id is all digits; the number is in the question."""
    task.bury(kind, "a", "4711", "c", body=body(kind))
    screen = opened(visit, kind)
    for one in ("4711", "c"):
        screen.page.get_by_label(f"Choose {WORDS[kind][:-1]} {one}").check()
    screen.page.get_by_role("button", name=f"Requeue 2 {WORDS[kind]}", exact=True).click()
    screen.confirm(f"Requeue 2 {WORDS[kind]}")
    screen.page.get_by_text(f"2 {WORDS[kind]} went back into the queue").wait_for()
    assert task.put_back(kind) == ["4711", "c"]
    assert last_line(site) == {"actor": "Olaf", "subject": kind, "after": {"ids": ["4711", "c"]}}
    expect(screen.page.locator("tbody tr")).to_have_count(1)


@pytest.mark.parametrize("kind", WORDS)
def test_all_go_back_after_a_question_with_their_number(visit: Visitors, task: Dead, kind: str) -> None:
    """The oldest first."""
    task.bury(kind, "a", "b", "c", body=body(kind))
    screen = opened(visit, kind)
    screen.page.get_by_role("button", name=f"Requeue all 3 {WORDS[kind]}").click()
    screen.confirm(f"Requeue all 3 {WORDS[kind]}")
    screen.page.get_by_text(f"3 {WORDS[kind]} went back into the queue").wait_for()
    assert task.put_back(kind) == ["a", "b", "c"]
    screen.page.get_by_text(f"No {WORDS[kind][:-1]} was given up").wait_for()


def test_what_died_after_the_question_stays(visit: Visitors, task: Dead) -> None:
    """As many go back as were said, so that what dies again at once is no endless loop."""
    task.bury("fanout", "a", "b", body=body("fanout"))
    screen = opened(visit, "fanout")
    screen.page.get_by_role("button", name="Requeue all 2 entity tasks").click()
    task.bury("fanout", "later", body=body("fanout"))
    screen.confirm("Requeue all 2 entity tasks")
    screen.page.get_by_text("2 entity tasks went back into the queue").wait_for()
    assert task.put_back("fanout") == ["a", "b"]
    screen.page.locator('tr[data-key="later"]').wait_for()


def test_one_without_an_id_goes_back_with_all_only(visit: Visitors, site: Site, task: Dead) -> None:
    """It cannot be named; what cannot be read is shown as it came. Our client gives an id to all that it publishes."""
    task.bury("fanout", "a", body=b"\xff[1")
    said = site.ask("GET", "/v1/dead-letters/fanout")
    said["items"][0]["id"] = None
    screen = visit("operator", "/dead-letters")
    screen.page.route("**/v1/dead-letters/fanout?*", lambda route: route.fulfill(json=said))
    screen.open("/dead-letters?kind=fanout")
    screen.page.get_by_label("Choose entity task without id #1").check()
    expect(screen.page.get_by_role("button", name="Requeue", exact=True)).to_be_disabled()
    screen.page.get_by_role("cell", name="unreadable").click()
    expect(screen.page.get_by_label("body", exact=True)).to_have_text("\\xff[1")
    screen.page.keyboard.press("Escape")
    screen.page.get_by_label("Choose entity task without id #1").uncheck()
    screen.page.get_by_role("button", name="Requeue 1 entity task", exact=True).click()
    screen.confirm("Requeue 1 entity task")
    screen.page.get_by_text("1 entity task went back").wait_for()
    assert task.put_back("fanout") == ["a"]


def test_a_filter_by_module_is_in_the_address(visit: Visitors, task: Dead) -> None:
    """Then only chosen ones go back: the queue cannot be asked for some."""
    task.bury("fanout", "a", body=body("fanout"))
    task.bury("fanout", "b", body=b'{"EntityCode": "BETA", "TaskType": "CDRS"}')
    screen = opened(visit, "fanout", more="&subject=CDRS")
    expect(screen.page.locator("tbody tr")).to_have_count(1)
    screen.page.get_by_role("cell", name="BETA").wait_for()
    expect(screen.page.get_by_role("button", name="Requeue", exact=True)).to_be_disabled()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_queues_letters(visit: Visitors, task: Dead, scheme: str) -> None:
    """The list, and the drawer above it; nothing is wider than a phone."""
    task.bury("fanout", "a", body=body("fanout"))
    screen = visit("operator", "/dead-letters?kind=fanout&letter=a", scheme=scheme)
    screen.page.get_by_label("body", exact=True).wait_for()
    assert screen.findings() == []
    phone = visit("operator", "/dead-letters?kind=fanout", scheme=scheme, width=390, height=844)
    phone.page.get_by_role("table").wait_for()
    assert phone.findings() == []
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_rabbitmq_that_is_away_is_said_with_its_code(visit: Visitors, site: Site, task: Dead) -> None:
    """The list says what failed and offers to ask again; other kinds work."""
    screen = visit("viewer", "/dead-letters")
    screen.may_complain = True
    screen.page.route(
        "**/v1/dead-letters/reports*",
        lambda route: route.fulfill(status=503, json={"code": "rabbitmq_unavailable", "detail": "It does not answer."}),
    )
    screen.open("/dead-letters?kind=reports")
    screen.page.get_by_text("rabbitmq_unavailable").wait_for(timeout=20_000)
    screen.page.get_by_role("radiogroup", name="Kind").get_by_text("Jobs").click()
    screen.page.get_by_text("Nothing was given up").wait_for()
