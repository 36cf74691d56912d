"""The SQL of polling."""
