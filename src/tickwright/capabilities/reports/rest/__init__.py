"""The REST routes of reports, report types and files."""
