"""Tickwright: everything that must happen later, or again and again, done exactly as promised."""

__version__ = "0.1.0"
