"""``tickwright top``: the overview in a terminal, with two keys, whichever way it is reached."""

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from io import StringIO

from msgspec.structs import replace
from rich.console import Console

from kit.api import running_api
from kit.cli import environment, tickwright
from kit.waiting import eventually
from tickwright.capabilities.batches.overview import ExecutionNow, ExecutionsNow
from tickwright.capabilities.fanout.overview import FanoutNow
from tickwright.capabilities.jobs.overview import JobsNow, LatestJob, WorkflowsNow
from tickwright.capabilities.operations.overview import AlertsNow, LeasesNow, OutboxNow, WorkersNow
from tickwright.capabilities.polling.overview import PartnerNow, PollsNow
from tickwright.capabilities.reports.overview import ReportsNow
from tickwright.cli.live.view import draw, duration, lines
from tickwright.ports.ids import monotonic
from tickwright.process.installation import overview_parts

PARTS = overview_parts()
VIEW = PARTS.view(
    at=datetime(2026, 1, 1, 12, 1, tzinfo=UTC),
    version="0",
    stale_since=datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC),
    stale_why="gone",
    jobs=JobsNow(10_000, 0, 3, 10_000, False, 7.5, 12.25, None, None, None, None, "capped", []),
    workflows=WorkflowsNow(),
    polls=PollsNow(0, 0, 0, 0.0, 0, None, None, None, 0, 0, [], [0] * 60, []),
    outbox=OutboxNow(4, 2.0, 2, 1, None),
    fanout=FanoutNow(0, 0, 0, None, None, 0, 0, 0, 0),
    reports=ReportsNow(0, 0, 0, 0, 0, 0, 0, None),
    executions=ExecutionsNow(0, 0.0, 0, 0, []),
    alerts=AlertsNow(1, 2, 0, []),
    workers=WorkersNow(2, 0, 1, {"worker": 2}),
    leases=LeasesNow(3, 0, ["upkeep"]),
    dead_letters=PARTS.dead_letters(0, 0, None),
    changes={},
)


class Terminal:
    """``tickwright top`` in a terminal of its own."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        words = [sys.executable, "-m", "tickwright", "top", "--every", "0.2"]
        wide = {**env, "TERM": "xterm", "COLUMNS": "180", "LINES": "50"}
        self.process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=wide)
        os.close(theirs)
        os.set_blocking(self._ours, False)
        self.shown = ""
        self._read_s = monotonic()

    def press(self, key: str) -> None:
        """Press a key."""
        os.write(self._ours, key.encode())

    def read(self) -> str:
        """Return what came since the last time."""
        try:
            new = os.read(self._ours, 1_000_000).decode(errors="replace")
        except (BlockingIOError, OSError):
            return ""
        self.shown += new
        return new

    def until(self, text: str) -> None:
        """Wait until it has shown ``text``."""
        eventually(lambda: (self.read(), text in self.shown)[1], 60, what=f"{text!r} is shown")

    def is_quiet(self) -> bool:
        """Whether nothing has come for longer than several refreshes take."""
        if self.read():
            self._read_s = monotonic()
        return monotonic() - self._read_s > 1.5


def test_it_draws_until_q_and_holds_with_p(database_url: str) -> None:
    """No Ctrl-C is needed, and the terminal is left as it was: the process ends with 0."""
    terminal = Terminal(environment(DATABASE_URL=database_url))
    try:
        terminal.until("nothing due")
        terminal.press("p")
        eventually(terminal.is_quiet, 30, what="the picture is held")
        terminal.press("p")
        eventually(terminal.read, 20, what="it goes on")
        terminal.press("q")
        eventually(lambda: (terminal.read(), terminal.process.poll() is not None)[1], 30, what="it ends")
        assert terminal.process.returncode == 0, terminal.shown[-2000:]
    finally:
        terminal.process.kill()
        terminal.process.wait()


async def test_through_the_api_it_is_the_same_overview(database_url: str) -> None:
    """The same object from both ways; its numbers are of one database."""
    async with running_api(database_url) as api:
        await api.pool.execute("INSERT INTO tickwright.scheduled_tasks (execute_at, task_type) VALUES (now(), 'x')")
        base = f"http://127.0.0.1:{api.port}"
        through = environment(API_URL=base, API_KEY=str(api.viewer.key))
        straight = environment(DATABASE_URL=database_url)
        found = [(await asyncio.to_thread(tickwright, "top", "--json", env=env)).json for env in (through, straight)]
    views = [PARTS.read(one) for one in found]
    assert [view.jobs.due for view in views] == [1, 1]
    assert found[0].keys() == found[1].keys()


def test_a_stale_overview_is_marked_at_its_head() -> None:
    """In the title and at the head of the line, with since when and why."""
    console = Console(width=200, record=True, file=StringIO())
    console.print(draw(VIEW, PARTS, "top"))
    shown = console.export_text()
    assert "stale since 12:00:05: gone" in shown
    assert "1 critical, 2 warning" in shown
    assert "overdue: upkeep" in shown
    [line] = lines(VIEW, PARTS)
    assert line.startswith("STALE since 12:00:05Z (gone) · waiting 0 · due ≥10000 · running 3 · started 12.2/s · ")
    assert "caught up: too many to tell" in line


def test_a_part_without_figures_is_named_and_the_others_are_shown() -> None:
    """A part that fails from its first snapshot on has none, and one whose text fails cannot be shown."""
    for part in PARTS:
        view = replace(VIEW, **dict.fromkeys(part.fields))
        console = Console(width=200, record=True, file=StringIO())
        console.print(draw(view, PARTS, "top"))
        for shown in (console.export_text(), "\n".join(lines(view, PARTS))):
            assert f"{', '.join(part.fields)}: unavailable" in shown
            assert ("12.2/s" in shown) == ("jobs" not in part.fields)
            assert ("1 critical" in shown) == ("alerts" not in part.fields)
    bad = replace(VIEW, fanout=replace(VIEW.fanout, entities=1, called_per_s="many"))
    assert "FanoutPart: cannot be shown: ValueError" in "\n".join(lines(bad, PARTS))


def test_what_users_wrote_is_shown_as_it_is() -> None:
    """Brackets in an error, and in the names of a type and a partner, are neither markup nor swallowed."""
    text = "[/data/in] is not [red] :key: [/]"
    execution = ExecutionNow(7, "loans", "EXCEPTION_OCCURRED", False, 0, 0, 0, 0, 0, 0, 0, 4.0, text)
    job = LatestJob(1, "[/type]", "failed", 1, 1, VIEW.at, text)
    polls = replace(VIEW.polls, trackers=1, partners=[PartnerNow("[/dhl]", "called", 0, 0, 0, 0, 0.0, "20/s")])
    jobs = replace(VIEW.jobs, latest=[job])
    view = replace(VIEW, jobs=jobs, polls=polls, executions=replace(VIEW.executions, latest=[execution]))
    console = Console(width=200, record=True, file=StringIO())
    console.print(draw(view, PARTS, "top"))
    shown = console.export_text()
    assert shown.count(text) == 2
    assert "[/type]" in shown
    assert "[/dhl]" in shown


def test_durations_have_the_unit_that_fits() -> None:
    """Milliseconds to hours."""
    assert [duration(one) for one in (0.005, 3.04, 600, 36_000)] == ["5 ms", "3.0 s", "10 min", "10.0 h"]
