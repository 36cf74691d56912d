"""The REST routes of jobs, task types and dead letters."""
