"""Shared by the tests: real servers, a proxy that breaks connections, bounded waiting, fixtures."""
