"""PostgreSQL: pools, migrations and shared SQL."""
