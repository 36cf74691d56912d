"""Entity fan-out; README.md has the promise, the states and the limits."""
