"""The REST routes of operations."""
