"""Findings of ``tickwright doctor``: whether an installation can keep its promises, and what to do if not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tickwright.ports.broker import Broker


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``warn`` means fewer guarantees; each result but ``ok`` has a remedy."""

    check: str
    verdict: Literal["ok", "warn", "fail"]
    says: str
    remedy: str = ""


def role_finding(alive: Mapping[str, int], role: str, without: str) -> Finding:
    """Return whether a process of ``role`` is ``alive``, or what does not happen ``without``."""
    if alive.get(role):
        return Finding(role, "ok", f"{alive[role]} alive")
    return Finding(role, "warn", f"none is alive: {without}", f"run: tickwright run {role}")


async def server_finding(broker: "Broker", server: str, variable: str) -> Finding:
    """Return whether the server of ``broker`` answers, and close the broker."""
    try:
        is_ready = await broker.ready()
    finally:
        await broker.aclose()
    if is_ready:
        return Finding(server, "ok", "answers")
    return Finding(server, "fail", "does not answer", f"start it, or correct {variable}")
