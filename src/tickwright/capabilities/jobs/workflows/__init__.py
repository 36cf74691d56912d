"""Workflows: jobs that wait for jobs."""
