"""The tree of commands, and their exit codes."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer._click.exceptions import NoArgsIsHelpError
from typer.exceptions import TyperException
from typer.main import get_command_name
from typer.models import CommandInfo

from tickwright import __version__
from tickwright.cli import run as running
from tickwright.cli.kit.output import close_quietly, show_error, write
from tickwright.domain.errors import Rejected, TickwrightError
from tickwright.plugin import Plugin
from tickwright.process.plugins import PLUGINS

WRONG_USE = frozenset(
    {
        "address_unusable",
        "app_not_found",
        "config_unreadable",
        "file_unreadable",
        "file_unwritable",
        "invalid_config",
        "invalid_password",
        "invalid_plugin",
        "invalid_role",
        "invalid_settings",
        "kafka_replication_unsafe",
        "kafka_unsafe_option",
        "not_an_app",
        "unknown_role",
        "wrong_argument",
    }
)
"""Errors in the command or its environment: exit code 2."""


def tickwright(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Everything that must happen later or again and again, done exactly as promised."""
    if version:
        write(f"tickwright {__version__}\n")
        raise typer.Exit
    from tickwright.observe.logs import configure_logging

    configure_logging(json=not sys.stderr.isatty(), level="warning")


def _program(arguments: Sequence[str]) -> typer.Typer:
    """Return the tree of commands; only the called command, where it is one: most modules are those of the others.

    Raises:
        Rejected: ``invalid_plugin``: a name is taken. Permanent until the plugin is removed.
    """
    app = typer.Typer(
        name="tickwright",
        help="Everything that must happen later or again and again, done exactly as promised.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(tickwright)
    running.add_to(app)
    places = [(plugin, command, place) for plugin in PLUGINS for command, place in plugin.commands.items()]
    names = Counter([*map(_name, app.registered_commands), *(command for _, command, _ in places)])
    for name, times in names.items():
        if times > 1:
            raise Rejected("invalid_plugin", f"two plugins, or a plugin and the product, have the command {name!r}")
    wanted = names.keys() & set(arguments[:1]) or names.keys()
    app.registered_commands = [one for one in app.registered_commands if _name(one) in wanted]
    for plugin, command, place in places:
        if command in wanted:
            _add_commands(app, plugin, command, place)
    return app


def _name(command: CommandInfo) -> str:
    return command.name or get_command_name(getattr(command.callback, "__name__", ""))


def _add_commands(app: typer.Typer, plugin: Plugin, command: str, place: str) -> None:
    module, _, name = place.partition(":")
    try:
        added = getattr(import_module(module), name or "app")
        app.add_typer(added, name=command) if isinstance(added, typer.Typer) else app.command(command)(added)
    except Exception as error:  # noqa: BLE001  a plugin's module can raise anything
        says = f"plugin {plugin.name}: its commands in {module} cannot be loaded: {error!r}"

        @app.command(command, help=says, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
        def refuse() -> None:
            raise Rejected("invalid_plugin", says)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code: 0 done, 1 failed, 2 wrong use."""
    as_json = "--json" in arguments
    try:
        answer = _program(arguments)(args=list(arguments), prog_name="tickwright", standalone_mode=False)
        return answer if isinstance(answer, int) and not isinstance(answer, bool) else 0
    except TickwrightError as error:
        show_error(error, as_json=as_json)
        return 2 if error.code in WRONG_USE else 1
    except TyperException as error:
        return _wrong_use(error, as_json=as_json)
    except BrokenPipeError:
        return 0
    except (KeyboardInterrupt, typer.Abort):
        return 130
    finally:
        close_quietly()


def _wrong_use(error: TyperException, *, as_json: bool) -> int:
    message = error.format_message()
    if isinstance(error, NoArgsIsHelpError):  # the help text is the answer
        write(f"{message}\n", stderr=True)
        return error.exit_code
    if as_json:
        write(json.dumps({"error": {"code": "wrong_use", "message": message}}) + "\n", stderr=True)
        return error.exit_code
    context = getattr(error, "ctx", None)
    write(f"tickwright: {message}\n", stderr=True)
    if context is not None:
        write(f"{context.command_path} --help says what there is\n", stderr=True)
    return error.exit_code
