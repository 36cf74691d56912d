"""Named queries of the API."""
