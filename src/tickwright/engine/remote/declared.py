"""What a program declares for remote workers instead of functions of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tickwright.engine.registry import Registry

RemoteKind: TypeAlias = Literal["job", "partner", "module", "batch"]


@dataclass(frozen=True, slots=True)
class DeclaredRemote:
    """One declaration.

    Attributes:
        called: Its name among those of its kind.
        settings: Checked, with the ``target``.
    """

    kind: RemoteKind
    called: str
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name among all kinds."""
        return f"{self.kind} {self.called}"


class RemoteRegistry(Registry[DeclaredRemote]):
    """The declarations of one program for remote workers."""

    kind = "remote"

    def of_kind(self, kind: RemoteKind) -> list[DeclaredRemote]:
        """Return those of one kind, by name."""
        return [one for one in self.all() if one.kind == kind]


def remotes_of(registrations: Any, kind: RemoteKind) -> list[DeclaredRemote]:
    """Return what a program declares of a kind for remote workers; a program that declares none gets no registry."""
    declared: RemoteRegistry | None = registrations.of(RemoteRegistry) if registrations.have("RemoteRegistry") else None
    return [] if declared is None else declared.of_kind(kind)
