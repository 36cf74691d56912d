"""Loops that carry the capabilities: sessions, leases, relay, upkeep, supervision."""
