"""Logs of a process: JSON for machines, lines on a terminal, without secrets of the settings."""

import sys

from tickwright.observe.logs import configure_logging, know_secret
from tickwright.plugin.settings import Settings


def start_logging(settings: Settings) -> None:
    """Set up the logs of this process, on standard error."""
    if settings.api_key is not None:
        know_secret(settings.api_key.get_secret_value())
    as_json = settings.log_format == "json" or (settings.log_format is None and not sys.stderr.isatty())
    configure_logging(json=as_json, level=settings.log_level)
