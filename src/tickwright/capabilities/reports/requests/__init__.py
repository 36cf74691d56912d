"""Requests for reports: records, conditions, announcements and explanations."""
