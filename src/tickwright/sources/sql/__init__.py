"""What is said to sources besides the queries themselves."""
