"""Report types: their schema, their checks and their frozen plan."""
