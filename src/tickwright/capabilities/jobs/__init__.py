"""One-shot jobs: each job runs at its own instant. See README.md in this folder."""
