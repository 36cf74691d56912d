"""What Tickwright does, one folder a capability; none knows another or a broker."""
