"""Registrations of a user's program, made with the decorators of the app object."""

from typing import Any, TypeVar

from tickwright.plugin.lifespan import Lifespan

R = TypeVar("R")


class Registrations:
    """One registry per kind, such as ``HandlerRegistry``, made on first use.

    A plugin asks with :meth:`have` whether there is one before it loads what handles its contents.

    Attributes:
        lifespan: The program's resources and middleware.
    """

    def __init__(self, *registries: Any) -> None:
        self.lifespan = Lifespan()
        self._registries = {type(one): one for one in registries}

    def have(self, kind: str) -> bool:
        """Return whether the program used the registry of this kind, by the name of its class."""
        return any(registry.__name__ == kind for registry in self._registries)

    def of(self, kind: type[R]) -> R:
        """Return the registry of this kind."""
        if kind not in self._registries:
            self._registries[kind] = kind()
        found: R = self._registries[kind]
        return found
