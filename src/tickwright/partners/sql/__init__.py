"""The SQL of the partner contract."""
