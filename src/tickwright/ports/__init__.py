"""Protocols between rooms: what a room needs from another, without its implementation."""
