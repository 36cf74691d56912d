"""Executions: produced for each occurrence, cut into chunks, worked by consumers, released by the checker."""
