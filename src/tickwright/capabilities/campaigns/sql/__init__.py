"""The SQL of campaigns."""
