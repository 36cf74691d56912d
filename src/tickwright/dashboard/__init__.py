"""The dashboard: its source in ``web/``, its build in ``static/``, and the application that serves it.

It runs in the browser as an ordinary client of the API.
"""

from tickwright.dashboard.page import Page

__all__ = ["Page"]
