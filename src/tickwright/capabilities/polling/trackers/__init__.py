"""Trackers and accounts: registration, events, freshness and explanations."""
