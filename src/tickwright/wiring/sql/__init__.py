"""SQL of starting up."""
