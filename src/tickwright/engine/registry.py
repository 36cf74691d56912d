"""Registries of what a program declares by decorator: handlers, partners, modules, listeners, reports, batches."""

from typing import ClassVar, Generic, Protocol, TypeVar

from tickwright.domain.errors import Rejected


class Declared(Protocol):
    """What a program declares under a name."""

    @property
    def name(self) -> str:
        """Its name, unique among those of its kind."""


D = TypeVar("D", bound=Declared)


class Registry(Generic[D]):
    """What one program declares of one kind, by name."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        self._declared: dict[str, D] = {}

    def add(self, declared: D) -> None:
        """Register what a program declares.

        Raises:
            Rejected: ``duplicate_<kind>``, or ``invalid_<kind>``: its function does not fit. Permanent.
        """
        if declared.name in self._declared:
            raise Rejected(f"duplicate_{self.kind}", f"two functions for {self.kind} {declared.name!r}")
        self._check(declared)
        self._declared[declared.name] = declared

    def _check(self, declared: D) -> None:
        """Refuse what does not fit."""

    def get(self, name: str) -> D | None:
        """Return what is declared under ``name``, or ``None``."""
        return self._declared.get(name)

    def all(self) -> list[D]:
        """Return everything in the order of the names."""
        return [self._declared[name] for name in sorted(self._declared)]
