"""The dashboard for tests: a real installation that serves it, and a real Chromium that opens it."""

import json
import re
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright
from psycopg.rows import dict_row

from kit.cli import environment, tickwright
from kit.processes import missing, spawn
from kit.server_process import ServerProcess
from kit.waiting import PATIENCE, eventually
from tickwright.dashboard.page import STATIC

AXE = STATIC.parent / "web/node_modules/axe-core/axe.min.js"
COOKIE = "tickwright_session"
ROLES = ("worker", "scheduler", "relay", "api")
_PATIENCE_MS = 20_000 * PATIENCE
expect.set_options(timeout=_PATIENCE_MS)


class Site(ServerProcess):
    """An installation: workers, scheduler, relay and API in one process, with ``kit.page_app``'s handlers.

    Args:
        database_url: URL of a migrated database that only the site uses.
        roles: Roles of the process.
        settings: Further ``TICKWRIGHT_…`` variables, without the prefix.
    """

    def __init__(self, database_url: str, roles: tuple[str, ...] = ROLES, **settings: str) -> None:
        super().__init__("site")
        self.database_url = database_url
        self.url = f"http://127.0.0.1:{self.port}"
        self.keys: dict[str, str] = {}
        self._roles = roles
        self._env = environment(
            DATABASE_URL=database_url,
            HOME=str(self.folder / "home"),
            API_BIND=f"127.0.0.1:{self.port}",
            METRICS_BIND="127.0.0.1:0",
            **settings,
        )
        tests = str(Path(__file__).resolve().parents[1])
        self._env["PYTHONPATH"] = f"{tests}:{self._env.get('PYTHONPATH', '')}"

    def start(self) -> None:
        """Return when it answers; the first start makes a key of each role."""
        if not self.keys:
            created = tickwright("keys", "create", "Ada", "--role", "admin", "--json", env=self._env)
            assert created.code == 0, created.err
            self.keys["admin"] = created.json["key"]
        command = [sys.executable, "-m", "tickwright", "run", *self._roles, "--app", "kit.page_app:app"]
        self._child = spawn(command, self.log, self._env)
        eventually(self._answers, 40, what=f"the site answers: {self.log}")
        for name, role in (("Olaf", "operator"), ("Vera", "viewer")):
            if role not in self.keys:
                self.keys[role] = self.ask("POST", "/v1/keys", {"name": name, "role": role})["key"]

    def _answers(self) -> bool:
        assert self._child is None or self._child.poll() is None, self.log.read_text()
        try:
            return bool(urllib.request.urlopen(f"{self.url}/readyz", timeout=2).status == 200)
        except OSError:
            return False

    def ask(self, method: str, path: str, body: Any = None, *, role: str = "admin") -> Any:
        """Send a request to the API as a script would."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.keys[role]}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def schedule(self, task_type: str, payload: Any = None, **more: Any) -> int:
        """Schedule a job; return its id."""
        body = {"task_type": task_type, "payload": payload or {}, **more}
        return int(self.ask("POST", "/v1/jobs", body)["id"])

    def status(self, job: int) -> str:
        """Return the status of a job's row."""
        return str(self.sql("SELECT status FROM tickwright.scheduled_tasks WHERE id = %s", job)[0]["status"])

    def until(self, job: int, status: str) -> None:
        """Wait until a job has a status."""
        eventually(lambda: self.status(job) == status, 20, what=f"job {job} is {status}")

    def sql(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        """Run a statement in the site's database; return its rows, if any."""
        with psycopg.connect(self.database_url, autocommit=True, row_factory=dict_row) as connection:
            done = connection.execute(statement, values)
            return list(done.fetchall()) if done.description else []


@dataclass
class Screen:
    """One signed-in browser window. An error in it fails the test, unless it is expected.

    Attributes:
        complaints: Errors of scripts, of the console (also of the policy) and failed requests.
    """

    page: Page
    site: Site
    complaints: list[str] = field(default_factory=list)
    may_complain: bool = False

    def open(self, path: str) -> "Screen":
        """Open a view."""
        self.page.goto(f"{self.site.url}{path}")
        return self

    def confirm(self, does: str) -> None:
        """Confirm the open question; ``does`` is the text of its button, number included."""
        self.page.locator("[data-confirm]").filter(has_text=re.compile(f"^{re.escape(does)}$")).click()

    def findings(self) -> list[str]:
        """Return what axe finds serious or critical, one line each."""
        if not AXE.exists():
            missing("axe-core", installer="python scripts/page.py schema")
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
            for one in found["violations"]
            if one["impact"] in {"serious", "critical"}
            for node in one["nodes"]
        ]


class Visitors:
    """Opens windows; each has its own cookies and preferences."""

    def __init__(self, browser: Browser, site: Site) -> None:
        self._browser, self._site = browser, site
        self._open: list[tuple[BrowserContext, Screen]] = []

    def __call__(
        self,
        role: str | None = "admin",
        path: str = "/",
        *,
        scheme: str = "light",
        width: int = 1360,
        height: int = 820,
    ) -> Screen:
        """Return a window at ``path``; ``role`` is that of the key that signs it in, ``None`` for no sign-in."""
        shape: Any = {"viewport": {"width": width, "height": height}, "color_scheme": scheme}
        context = self._browser.new_context(**shape, locale="en-GB", timezone_id="Europe/Berlin")
        context.set_default_timeout(_PATIENCE_MS)
        if role is not None:
            signed = context.request.post(f"{self._site.url}/v1/session", data={"key": self._site.keys[role]})
            assert signed.ok, signed.text()
        screen = Screen(context.new_page(), self._site)
        screen.page.on("pageerror", lambda error: screen.complaints.append(f"script: {error}"))
        screen.page.on("console", lambda message: _record_error(screen, message))
        self._open.append((context, screen))
        return screen.open(path)

    def close(self) -> None:
        """Close every window; an unexpected error fails here."""
        windows, self._open = self._open, []
        for context, _ in windows:
            context.close()
        complaints = [line for _, screen in windows if not screen.may_complain for line in screen.complaints]
        assert not complaints, complaints


def _record_error(screen: Screen, message: ConsoleMessage) -> None:
    if message.type == "error":
        screen.complaints.append(f"console: {message.text} {message.location.get('url', '')}")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's Chromium without a window."""
    program = shutil.which("chromium") or missing("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()
