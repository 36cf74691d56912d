"""The SQL of one-shot jobs."""
