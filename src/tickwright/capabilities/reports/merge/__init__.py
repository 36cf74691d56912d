"""Steps of a report: decided under a claim, and merged by DuckDB processes."""
