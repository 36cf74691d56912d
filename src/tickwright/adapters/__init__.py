"""What is used beside PostgreSQL and the brokers: one folder each."""
