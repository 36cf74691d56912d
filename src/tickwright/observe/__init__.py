"""Logs, metrics, traces and alert rules for operators. Imports neither the worker nor the relay."""
