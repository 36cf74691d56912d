"""What a browser loads of the page, and when its user can begin.

Sizes are those of the built files as the server sends them. The time is measured by Debian's Chromium through
Playwright, from the navigation to the mark that the page itself sets; without either of them it is left out.
"""

import re
import shutil
import statistics
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from tickwright.bench.dashboard_world import Site
from tickwright.bench.ground import wait_until
from tickwright.bench.report import Figures
from tickwright.dashboard.page import INDEX, STATIC, StaticFile, read_files

FIRST_VIEW = re.compile(r"assets/OverviewView(?:-[^/]+)?\.js")
_ASSETS = PurePosixPath("assets")
_TAG = re.compile(r'(?:src|href)="\./(assets/[^"]+\.js)"')
_STATIC = re.compile(r"""(?:from|import)\s*["'`]\./([^"'`]+\.js)["'`]""")
_LATER = re.compile(r"""import\(\s*["'`]\./([^"'`]+\.js)["'`]""")
_USABLE = """(within_ms) => new Promise((told, refuse) => {
  setTimeout(() => refuse(new Error("the page does not say that it can be used")), within_ms);
  new PerformanceObserver((list) => list.getEntriesByName("usable").forEach((one) => told(one.startTime)))
    .observe({ type: "mark", buffered: true });
})"""
_LOADED = "performance.getEntriesByType('resource').map((one) => new URL(one.name).pathname)"
_VERSION = re.compile(r"^assets/[0-9a-f]{16}/")
_WITHIN_MS = 60_000
_BEHIND_S = 20.0

Say = Callable[[str], None]


def script_bytes(details: dict[str, Any]) -> Figures:
    """Return how much JavaScript the first view takes, and all views together, as it goes over the wire."""
    files = {name: file for name, file in read_files(STATIC).items() if name.endswith((".js", INDEX))}
    first = first_scripts(files)
    details["first_view_scripts"] = {name: _sent_bytes(files[name]) for name in sorted(first)}
    return {
        "js_gzip_bytes": sum(_sent_bytes(files[name]) for name in first),
        "js_all_gzip_bytes": sum(_sent_bytes(file) for name, file in files.items() if name != INDEX),
    }


def first_scripts(files: Mapping[str, StaticFile]) -> set[str]:
    """Return the scripts that the overview needs: the page's own, the view's, and what that loads behind itself."""
    [view] = [name for name in files if FIRST_VIEW.fullmatch(name)]
    wanted = [*_TAG.findall(_text(files[INDEX])), view, *_named(_LATER, files[view])]
    found: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += _named(_STATIC, files[name])
    return found


def _named(pattern: re.Pattern[str], file: StaticFile) -> list[str]:
    return [str(_ASSETS / name) for name in pattern.findall(_text(file))]


def _text(file: StaticFile) -> str:
    return file.plain.body.decode()


def _sent_bytes(file: StaticFile) -> int:
    return len((file.packed or file.plain).body)


def first_views(site: Site, loads: int, say: Say, details: dict[str, Any]) -> Figures:
    """Return the median time of cold loads, signed in: each in a browser profile that has never seen the page."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        say("first_view_ms is left out: Playwright is not installed (pip install playwright)")
        return {}
    program = shutil.which("chromium")
    if program is None:
        say("first_view_ms is left out: there is no chromium (apt install chromium)")
        return {}
    with site.api() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            usable_ms = [_cold_load(browser, url, site.key, details) for _ in range(loads)]
        finally:
            browser.close()
    details["first_view_ms"] = [round(one) for one in usable_ms]
    return {"first_view_ms": statistics.median(usable_ms)}


def _cold_load(browser: Any, url: str, key: str, details: dict[str, Any]) -> float:
    context = browser.new_context()
    try:
        signed = context.request.post(f"{url}/v1/session", data={"key": key})
        if not signed.ok:
            raise RuntimeError(f"the sign-in failed: {signed.text()}")
        page = context.new_page()
        page.goto(f"{url}/")
        usable_ms = float(page.evaluate(_USABLE, _WITHIN_MS))
        counted = set(details["first_view_scripts"])
        wait_until(lambda: counted <= _loaded(page), _BEHIND_S, "the scripts that are counted", check_s=0.1)
        details["first_view_not_counted"] = sorted(_loaded(page) - counted)
        return usable_ms
    finally:
        context.close()


def _loaded(page: Any) -> set[str]:
    """Return the scripts by their names in the package: served, they have the page's version in their path."""
    return {_VERSION.sub("assets/", path[1:]) for path in page.evaluate(_LOADED) if path.endswith(".js")}
