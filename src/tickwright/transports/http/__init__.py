"""Callbacks by HTTP, to addresses and to receivers of alerts; README.md has promise, outcomes and limits."""
