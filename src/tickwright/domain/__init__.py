"""Pure decisions: no I/O, no clock, no randomness, no asyncio, no logging."""
