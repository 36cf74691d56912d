"""The overview: one snapshot a second for the dashboard, ``top`` and ``up``."""
