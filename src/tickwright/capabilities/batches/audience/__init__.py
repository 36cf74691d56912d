"""Audiences: cut into ranges of a key once, then read range by range."""
