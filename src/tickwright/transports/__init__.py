"""Transports, one folder each. They implement ports and do not import each other."""
