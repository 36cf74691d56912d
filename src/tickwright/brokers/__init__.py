"""Ways out, one folder each; they implement ``ports.broker`` and do not know each other."""
