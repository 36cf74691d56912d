"""The REST routes of entities and modules."""
