"""Ways out of Tickwright, one folder each; they implement ports and do not know each other."""
