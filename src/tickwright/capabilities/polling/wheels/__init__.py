"""Wheels: which tracker is polled in which time slot, and the ledger of slices."""
