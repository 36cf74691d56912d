"""Loads the user's program: ``MODULE:APP``."""

import importlib
import sys
from pathlib import Path
from typing import Any

from tickwright.domain.errors import Rejected
from tickwright.plugin import Registrations, Settings
from tickwright.process.settings import load_settings


def load_app(name: str) -> Any:
    """Return the app object at ``MODULE:APP``; the current folder is searched first, as by ``python -m``.

    Raises:
        Rejected: ``app_not_found``, there is no such module or object; ``not_an_app``. Permanent.
    """
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise Rejected("app_not_found", f"TICKWRIGHT_APP: there is no module {module_name} in {here}") from None
    found = getattr(module, attribute, None)
    if found is None:
        raise Rejected("app_not_found", f"TICKWRIGHT_APP: {module_name} has no {attribute}")
    if not isinstance(getattr(found, "registrations", None), Registrations):
        raise Rejected("not_an_app", f"TICKWRIGHT_APP: {name} is not a Tickwright object")
    return found


def load_settings_with_app(**given: Any) -> Settings:
    """Return the settings of a process that runs an app.

    The app's own settings override the environment; ``given``, from the command line, overrides both. So a program uses
    the same database and file whether it runs by itself or under ``tickwright run --app``.

    Raises:
        Rejected: ``invalid_settings``; otherwise as ``load_app``. Permanent.
    """
    settings = load_settings(**given)
    if settings.app is None:
        return settings
    own = getattr(load_app(settings.app), "own_settings", {})
    chosen = {name: value for name, value in given.items() if value is not None}
    return load_settings(**{**own, **chosen, "app": settings.app})


def registered_by(name: str | None) -> Registrations:
    """Return the registrations of the app ``name``; none without a name. Errors as ``load_app``."""
    if name is None:
        return Registrations()
    found: Registrations = load_app(name).registrations
    return found
