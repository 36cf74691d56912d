"""Pushes by WebSocket; README.md has the frames, the outcomes and the limits."""
