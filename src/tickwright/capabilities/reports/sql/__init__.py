"""The SQL of reports."""
