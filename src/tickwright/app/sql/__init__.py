"""SQL of the app object."""
