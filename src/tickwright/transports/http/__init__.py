"""HTTP callbacks, to addresses and to receivers of alerts; README.md has the promise, the outcomes and the limits."""
