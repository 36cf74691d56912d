"""The pictures of the dashboard in ``docs/images``: screenshots of ``tickwright up`` with its example, by Chromium.

The pictures show what runs: jobs, campaigns and alerts are those of the first minute of its example. Only the ledger of
slices is filled by hand, with six hours of polls, since the example is too young to have them. Needs the embedded
PostgreSQL and the Chromium of the tests: ``make dev && .venv/bin/python scripts/screenshots.py``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import psycopg  # noqa: E402
from playwright.sync_api import Browser, Page  # noqa: E402

from kit.pages import COOKIE, chromium  # noqa: E402
from kit.ports import free_port  # noqa: E402
from kit.processes import spawn  # noqa: E402
from kit.waiting import eventually  # noqa: E402

OUT = ROOT / "docs/images"
BYTES_MAX = 150_000
WIDE, NARROW = (1360, 850), (1180, 700)
SLICES = """
INSERT INTO tickwright.poll_slices
  (due_at, slot_id, partner_no, interval_minutes, selected, published, polled, late, loads)
SELECT date_trunc('minute', now()) - m * interval '1 minute', (1440 - m) % 120, partner_no, 120, load, load,
       load - m % 3, m % 3, ARRAY[load / 6, load / 6, load / 6, load / 6, load / 6, load - load / 6 * 5]
  FROM generate_series(11, 360) AS m, tickwright.partners,
       LATERAL (SELECT 460 + (m * 37 + partner_no * 11) % 60 AS load) AS l
    ON CONFLICT DO NOTHING
"""
PICTURES = {
    "overview-dark": ("/overview", "dark", WIDE),
    "overview-light": ("/overview", "light", WIDE),
    "job": ("/jobs?job={job}", "dark", NARROW),
    "campaign": ("/campaigns/edit?name={campaign}", "light", NARROW),
    "slices": ("/slices", "dark", NARROW),
}


class Shown:
    """``tickwright up`` with its example, which it has with the embedded PostgreSQL alone."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._key_file = folder / "home/admin.key"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TICKWRIGHT_")}
        self._environment = {
            **clean,
            "PYTHONPATH": str(ROOT / "src"),
            "TICKWRIGHT_HOME": str(folder / "home"),
            "TICKWRIGHT_API_BIND": self.url.removeprefix("http://"),
            "TICKWRIGHT_METRICS_BIND": "127.0.0.1:0",
        }
        self._log = folder / "log"

    def start(self) -> "subprocess.Popen[bytes]":
        """Return when it answers."""
        child = spawn([sys.executable, "-m", "tickwright", "up"], self._log, self._environment)
        eventually(self._answers, 90, what=f"up answers: {self._log}")
        return child

    @property
    def key(self) -> str:
        """The key of its admin."""
        return self._key_file.read_text(encoding="utf-8").strip()

    def _answers(self) -> bool:
        try:
            return bool(self.ask("/v1/session"))
        except OSError:
            return False

    def ask(self, path: str) -> Any:
        """Ask its API."""
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.key}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def fill_slices(self) -> None:
        """Write six hours of polls into its slice ledger."""
        (running,) = self._key_file.parent.rglob("postmaster.pid")
        port, folder = running.read_text(encoding="utf-8").splitlines()[3:5]
        where = f"host={folder} port={port} dbname=tickwright user=postgres"
        with psycopg.connect(where, autocommit=True) as connection:
            connection.execute(SLICES)

    def _failed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("/v1/jobs?status=failed")["items"]
        return found

    def names(self) -> dict[str, Any]:
        """Return what the pictures are of: a job that failed more than once, and a campaign."""
        eventually(self._failed, 180, what="a job of the example fails for good")
        failed = self._failed()
        campaigns = self.ask("/v1/campaigns")["items"]
        most = max(failed, key=lambda one: one["attempts"])
        return {"job": most["id"], "campaign": campaigns[0]["name"]}


def main() -> int:
    """Make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="a folder; docs/images without it")
    parser.add_argument("--after", type=float, default=45.0, help="seconds of the example before the first picture")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shown = Shown(Path(folder))
        child = shown.start()
        try:
            with chromium() as browser:
                _take(browser, shown, options.out, options.after)
        finally:
            child.terminate()
            child.wait(timeout=60)
    return 0


def _take(browser: Browser, shown: Shown, out: Path, after_s: float) -> None:
    viewer = _page(browser, shown, "dark", WIDE)  # the overview has figures of the time in which it is open
    viewer.goto(f"{shown.url}/overview")
    viewer.wait_for_timeout(after_s * 1000)
    viewer.context.close()
    shown.fill_slices()
    names = shown.names()
    for name, (path, scheme, size) in PICTURES.items():
        page = _page(browser, shown, scheme, size)
        page.goto(shown.url + path.format(**names))
        page.get_by_role("heading", level=1).wait_for()
        page.wait_for_timeout(4_000)  # lines are drawn, and nothing is a skeleton any more
        file = out / f"{name}.png"
        page.screenshot(path=file)
        page.context.close()
        weight = file.stat().st_size
        print(f"{file.name}: {weight:,} bytes", flush=True)
        if weight > BYTES_MAX:
            raise SystemExit(f"{file} is larger than {BYTES_MAX:,} bytes: take a smaller part of the page")


def _page(browser: Browser, shown: Shown, scheme: Any, size: tuple[int, int]) -> Page:
    viewport: Any = dict(zip(("width", "height"), size, strict=True))
    context = browser.new_context(viewport=viewport, color_scheme=scheme, locale="en-GB", timezone_id="Europe/Berlin")
    cookie: Any = {"name": COOKIE, "value": shown.key, "url": shown.url, "httpOnly": True, "sameSite": "Strict"}
    context.add_cookies([cookie])
    return context.new_page()


if __name__ == "__main__":
    sys.exit(main())
