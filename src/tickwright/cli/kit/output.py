"""Output of commands: tables for people, JSON for programs, errors in one line.

All output passes through this module. Characters in the text of users and partners that would affect a terminal are
shown as code points. Standard output carries only results; messages about them go to standard error. Colours appear
only on a terminal. If a reader closes the pipe, the command ends without an error.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from tickwright.domain.errors import TickwrightError

EMPTY = "–"
PIPE_WIDTH = 4000
CELL_CHARS_MAX = 120
_ACTS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""The same as in the dashboard: controls, direction marks, characters without width or ink, other line ends."""
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z")
Columns = Sequence[str]


def visible(text: str) -> str:
    """Return ``text`` with every character that affects a terminal, but line ends and tabs, named as ``[U+001B]``."""
    return _ACTS.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def write(text: str, *, stderr: bool = False) -> None:
    """Write text for people, with characters that affect a terminal named."""
    (sys.stderr if stderr else sys.stdout).write(visible(text))


class _VisibleConsole(Console):
    """A console that names characters that affect a terminal. Its own colours and movements are unaffected."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as Rich does, with characters that affect a terminal named."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """Return a console; it wraps lines on a terminal, never in a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return _VisibleConsole(file=stream, highlight=False, emoji=False)
    return _VisibleConsole(file=stream, highlight=False, emoji=False, no_color=True, width=PIPE_WIDTH, soft_wrap=True)


def say(text: str) -> None:
    """Print a message about the results to standard error."""
    console(stderr=True).print(escape(text))


def show_json(value: Any) -> None:
    """Print one JSON value."""
    sys.stdout.write(to_json(value, indent=2 if sys.stdout.isatty() else None) + "\n")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return JSON with every character that affects a terminal escaped."""
    text = json.dumps(value, ensure_ascii=False, default=str, indent=indent)
    return _ACTS.sub(lambda found: json.dumps(found[0])[1:-1], text)


def show_rows(rows: Iterable[Mapping[str, Any]], columns: Columns, *, empty: str = "nothing") -> None:
    """Print rows as a table."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(escape(_short(row.get(column))) for column in columns))
    if table.row_count:
        console().print(table)
    else:
        say(empty)


def show_fields(row: Mapping[str, Any]) -> None:
    """Print one thing, a line per field that has a value."""
    width = max((len(name) for name in row), default=0)
    for name, value in row.items():
        if value is not None:
            text = _cell(value).replace("\n", "\n" + " " * (width + 2))  # a line of a value must not appear as a field
            write(f"{name.replace('_', ' '):<{width}}  {text}\n")


def show_page(page: Mapping[str, Any], columns: Columns, *, as_json: bool, empty: str) -> None:
    """Print one page of a listing, and the option for the next one."""
    if as_json:
        show_json(page)
        return
    show_rows(page["items"], columns, empty=empty)
    if page.get("next"):
        say(f"there is more: --cursor {page['next']}")


def show_answer(answer: Any, *, as_json: bool, sentence: Callable[[Any], str]) -> None:
    """Print the result of an action."""
    if as_json:
        show_json(answer)
    else:
        write(sentence(answer) + "\n")


def show_explanation(answer: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the answer of an ``explain`` route: the summary, and a line per reason."""
    reasons = "".join(f"\n  {reason['text']} ({reason['code']})" for reason in answer["reasons"])
    show_answer(answer, as_json=as_json, sentence=lambda a: f"{a['status']}: {a['summary']}{reasons}")


def show_error(error: TickwrightError, *, as_json: bool) -> None:
    """Print an error to standard error: one line (or one line per mistake), or one JSON object."""
    if as_json:
        document = {"code": error.code, "message": error.message, "retriable": error.retriable, **error.details}
        sys.stderr.write(to_json({"error": document}) + "\n")
    else:
        console(stderr=True).print(f"[red]tickwright:[/red] {escape(error.message)} [dim]({escape(error.code)})[/dim]")


def close_quietly() -> None:
    """Flush the output; a closed pipe is not an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _short(value: Any) -> str:
    """Return a value for a table: instants to the second, and at most one line."""
    text = _INSTANT.sub(r"\1 \2Z", value) if isinstance(value, str) else _cell(value)
    text = visible((text or EMPTY).partition("\n")[0])
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def _cell(value: Any) -> str:
    if value is None or value in ("", []):
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


# Options that many commands share.

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Cursor = Annotated[str | None, typer.Option(help="Continue behind a page: the cursor that it ends with.")]
Limit = Annotated[int, typer.Option(min=1, max=200, help="The most rows to show.")]
JobId = Annotated[int, typer.Argument(min=1, max=2**63 - 1, metavar="ID", help="The job's id.")]
TrackerId = Annotated[int, typer.Argument(min=1, max=2**63 - 1, metavar="ID", help="The tracker's id.")]
JobIds = Annotated[list[int] | None, typer.Option("--id", min=1, max=2**63 - 1, help="Only this job. Repeatable.")]
Since = Annotated[str | None, typer.Option(metavar="TIME", help="From this time on; RFC 3339 with its offset.")]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Before this time; RFC 3339 with its offset.")]
At = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="At this time; RFC 3339 with its offset, such as 2030-01-31T09:00:00Z."),
]
In = Annotated[
    str | None,
    typer.Option("--in", metavar="DURATION", help='After this time by the database\'s clock, such as "30s".'),
]
