"""Fan-out / gather reports: many sources asked at once, one file."""
