"""The worker of one-shot jobs: claims due rows, runs attempts, writes results."""
