"""Operator actions on jobs, task types and dead letters."""
