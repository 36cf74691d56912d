"""Adding jobs: one, many, or a stream of lines."""
