"""The scheduler of fan-out: publishes one task per entity and window."""
