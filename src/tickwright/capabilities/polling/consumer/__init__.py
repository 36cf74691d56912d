"""The consumer of polls: takes polls, calls partners, writes results."""
