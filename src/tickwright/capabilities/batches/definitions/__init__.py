"""Definitions of batches and campaigns: their schema, their rows, and what operators do with them."""
