"""The web page: its source in ``web/``, what is built of it in ``static/``, and what serves that.

It knows nothing of the API but that it is a client of it, in somebody's browser.
"""

from tickwright.dashboard.page import Page

__all__ = ["Page"]
