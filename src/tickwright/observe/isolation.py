"""An error in one part of many, such as a plugin's counter, is logged and does not end the others."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog


class Isolation:
    """Contains the errors of parts; each kind of error of a part is logged once, as it can repeat every second.

    Args:
        event: The name of the log event.
        passes: Errors that are not the part's and are raised, such as those of the database.
    """

    def __init__(self, event: str, passes: tuple[type[Exception], ...] = ()) -> None:
        self._log = structlog.get_logger("tickwright.isolation")
        self._event, self._passes = event, passes
        self._logged: set[tuple[str, type[Exception]]] = set()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run the block as the part ``name``: its error is logged and ends only the block."""
        try:
            yield
        except self._passes:
            raise
        except Exception as error:  # noqa: BLE001  a part can raise anything
            if (name, type(error)) not in self._logged:
                self._logged.add((name, type(error)))
                self._log.error(self._event, part=name, error=repr(error)[:300])
