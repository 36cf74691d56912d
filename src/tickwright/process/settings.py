"""Reads and checks all settings of a process: its own and those of each plugin."""

import difflib
import os
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tickwright.domain.errors import Rejected
from tickwright.plugin.secrets import SECRET
from tickwright.plugin.settings import PREFIX, Settings, SettingsPart
from tickwright.process.plugins import PLUGINS

OUTSIDE = frozenset({"TICKWRIGHT_PG_BIN"})
"""Variables that are no settings: ``embedded`` reads the folder of its server's programs."""
_INHERITED = ("TICKWRIGHT_TEST_", "TICKWRIGHT_EXAMPLE_", SECRET)


def parts() -> list[type[SettingsPart]]:
    """Return every part of the settings, the process's own first."""
    return [Settings, *(plugin.settings for plugin in PLUGINS if plugin.settings is not None)]


def load_settings(**given: Any) -> Settings:
    """Return the settings of this process; ``given`` (from the command line) overrides the environment.

    Raises:
        Rejected: ``invalid_settings``; the message has a line per mistake, all at once. Permanent.
    """
    given = {name: value for name, value in given.items() if value is not None}
    problems: list[str] = []
    for kind in parts():
        try:
            read = kind(**{name: value for name, value in given.items() if name in kind.model_fields})
        except ValidationError as error:
            problems += [_problem(entry) for entry in error.errors()]
        else:
            problems += [f"  {line}" for line in read.contradictions()]
    strange = given.keys() - {name for kind in parts() for name in kind.model_fields}
    problems += [f"  {PREFIX}{name.upper()}: there is no such setting" for name in sorted(strange)]
    if problems:
        raise Rejected("invalid_settings", "\n".join(["the settings are not valid:", *problems]), problems=problems)
    return Settings(**given)


def unknown_names(environment: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Return variables with our prefix and no meaning, each with the most similar known name."""
    known = {PREFIX + name.upper() for kind in parts() for name in kind.model_fields} | OUTSIDE
    names = os.environ if environment is None else environment
    strange = [n for n in names if n.startswith(PREFIX) and n not in known and not n.startswith(_INHERITED)]
    return {name: next(iter(difflib.get_close_matches(name, known, n=1)), None) for name in sorted(strange)}


def _problem(entry: Mapping[str, Any]) -> str:
    """Return a line for one wrong variable, without its value, which may be a secret."""
    name = PREFIX + str(entry["loc"][0]).upper() if entry["loc"] else "environment"
    cause = entry.get("ctx", {}).get("error")
    if entry["type"] == "string_pattern_mismatch" and entry["loc"] == ("app",):
        return f"  {name}: write MODULE:APP, such as shop.jobs:app"
    return f"  {name}: {cause or entry['msg']}"
