"""Merging: steps of a report, decided under a claim and carried out by DuckDB processes."""
