"""Mechanisms that every capability uses: sessions, leases, claimed work, wake-ups, outbox. Imports no capability."""
