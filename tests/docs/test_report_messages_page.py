"""The page of messages states which messages of reports are written, and which queues are made and read."""

import json
import re
from pathlib import Path

from msgspec.structs import replace

from tickwright.capabilities.reports.requests.store import (
    Announcement,
    read_announcement,
    write_announcement,
)
from tickwright.transports.rabbitmq.topology import report_names

PAGE = Path(__file__).parents[2] / "docs/messages.md"


def section() -> str:
    """Return what the page says of reports."""
    return PAGE.read_text(encoding="utf-8").partition("\n## Calls of reports\n")[2].partition("\n## ")[0]


def test_the_call_on_the_page_is_what_is_published() -> None:
    """Byte by byte, and every member that there can be has its line."""
    [shown] = re.findall(r"```json\n(.*)\n```", section())
    call = read_announcement(shown.encode())
    assert write_announcement(call) == shown
    named = re.findall(r"^\| `([a-z_]+)` \|", section(), re.MULTILINE)
    assert sorted(named) == sorted(Announcement.__struct_fields__)
    large = json.loads(write_announcement(replace(call, feed={"x": "y" * 70_000})))
    assert large["feed_omitted"] is True


def test_the_queues_of_reports_on_the_page_are_those_that_are_made() -> None:
    """Names, arguments and exchanges of the table, and of the line below it."""
    page, names = section(), report_names("tickwright", "LISTENER")
    for exchange in names.exchanges:
        assert f"`{exchange}`" in page
    for queue, arguments in names.queues.items():
        [line] = re.findall(rf"^\| `{re.escape(queue.replace('LISTENER', '<listener>'))}` \|.*$", page, re.MULTILINE)
        for argument, value in arguments.items():
            if isinstance(value, int):
                assert f"`{argument}` {value:,}" in line, (queue, argument)
            elif argument == "x-dead-letter-exchange":
                assert f"dead letters to `{value}`" in line, queue
            elif value not in {"quorum", names.key}:
                assert f"`{argument}` `{value}`" in page, (queue, argument)
