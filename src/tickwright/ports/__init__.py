"""Protocols between the rooms: what a room needs from another, without knowing which one it gets."""
