"""The SQL of the benches."""
