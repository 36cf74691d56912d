"""Batches and campaigns: a producer, a database and consumers. README.md has the promises, states and limits."""
