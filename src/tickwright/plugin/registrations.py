"""What a user's program registers with the decorators of the app object, as one value."""

from typing import Any, TypeVar

R = TypeVar("R")


class Registrations:
    """One registry per kind, such as ``HandlerRegistry``; a registry is made when it is first used.

    Args:
        registries: Those that are filled already.
    """

    def __init__(self, *registries: Any) -> None:
        self._registries = {type(one): one for one in registries}

    def of(self, kind: type[R]) -> R:
        """Return the registry of this kind."""
        if kind not in self._registries:
            self._registries[kind] = kind()
        found: R = self._registries[kind]
        return found
