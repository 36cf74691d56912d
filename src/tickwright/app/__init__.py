"""The app object of a program: it registers handlers and schedules work."""

from tickwright.app.program import Tickwright

__all__ = ["Tickwright"]
