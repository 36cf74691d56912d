"""When schedules occur, and which occurrences get work."""
