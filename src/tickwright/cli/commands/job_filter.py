"""The options that name many jobs, declared once: by the same ones jobs are listed, cancelled, retried and moved."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from tickwright.cli.kit.options import JobIds, Since, Until
from tickwright.domain.states import JobStatus

Status = Annotated[list[JobStatus] | None, typer.Option(help="May be given several times.")]
OfType = Annotated[str | None, typer.Option("--type", help="Of one task type.")]
KeyOf = Annotated[str | None, typer.Option("--key", help="The job of an idempotency key.")]
Text = Annotated[str | None, typer.Option(help="With this text in the key, the last error or the payload.")]
Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Which:
    """What the options name; every field is an option."""

    ids: JobIds = None
    status: Status = None
    task_type: OfType = None
    since: Since = None
    until: Until = None
    key: KeyOf = None
    text: Text = None

    def named(self) -> dict[str, Any]:
        """Return what is given, by the words of the API."""
        given = {
            "ids": self.ids,
            "status": [str(one) for one in self.status or ()],
            "task_type": self.task_type,
            "execute_from": self.since,
            "execute_to": self.until,
            "idempotency_key": self.key,
            "text": self.text,
        }
        return {name: value for name, value in given.items() if value}


def takes_which(*, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Give a command these options where it has its parameter ``which``; ``without`` names those that it lacks."""
    hints = get_type_hints(Which, include_extras=True)
    names = [field.name for field in fields(Which) if field.name not in without]
    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hints[name]) for name in names]

    def with_options(command: Command) -> Command:
        own = [
            one.replace(kind=Parameter.KEYWORD_ONLY) for one in signature(command, eval_str=True).parameters.values()
        ]
        place = [one.name for one in own].index("which")

        @wraps(command)
        def run(**given: Any) -> None:
            command(which=Which(**{name: given.pop(name) for name in names}), **given)

        run.__signature__ = Signature([*own[:place], *options, *own[place + 1 :]])  # type: ignore[attr-defined]
        return run

    return with_options
