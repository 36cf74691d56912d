"""Parts of benches that measure the API."""
