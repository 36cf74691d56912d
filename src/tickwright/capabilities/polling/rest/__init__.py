"""The REST routes of trackers, accounts, partners and slices."""
