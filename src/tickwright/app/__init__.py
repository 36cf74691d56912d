"""The program's side of Tickwright: one object that registers handlers and schedules work."""

from tickwright.app.program import Tickwright

__all__ = ["Tickwright"]
