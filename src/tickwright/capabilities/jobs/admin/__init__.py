"""What operators do with jobs, task types and dead letters."""
