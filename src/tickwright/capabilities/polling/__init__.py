"""Dynamic polling: trackers of any entity, each polled at its own interval, the load level in every second."""
