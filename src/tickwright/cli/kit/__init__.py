"""Shared by all commands: the gateway, output, options and file streams."""
