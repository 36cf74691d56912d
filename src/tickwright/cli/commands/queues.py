"""``tickwright queues``: the queues of task types, and their pauses."""

from functools import partial
from typing import Annotated

import typer

from tickwright.cli.kit.gateway import api_path, ask
from tickwright.cli.kit.output import Json, show_answer, show_page

app = typer.Typer(
    help="Queues: task types that workers reserve slots for.", no_args_is_help=True, rich_markup_mode=None
)
COLUMNS = ("name", "types", "due", "running", "workers", "paused_at")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue.")]
path = partial(api_path, "queues", "NAME")


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List every queue of a task type, its jobs and the workers that serve it."""
    show_page(ask("GET", "/queues"), COLUMNS, as_json=as_json, empty="no queues")


@app.command()
def pause(name: Name, as_json: Json = False) -> None:
    """Make the jobs of a queue wait. Running jobs continue."""
    show_answer(ask("POST", path(name) + "/pause"), as_json=as_json, sentence=lambda q: f"{q['name']} waits")


@app.command()
def enable(name: Name, as_json: Json = False) -> None:
    """Let the jobs of a queue run again."""
    show_answer(ask("POST", path(name) + "/enable"), as_json=as_json, sentence=lambda q: f"{q['name']} runs")
