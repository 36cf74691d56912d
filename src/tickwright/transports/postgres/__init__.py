"""The transport inside PostgreSQL; README.md has the promise, the outcomes and the limits."""
