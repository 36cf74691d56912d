"""PostgreSQL: pools, migrations and the SQL that several rooms share."""
