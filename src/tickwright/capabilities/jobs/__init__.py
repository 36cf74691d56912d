"""One-shot jobs: each runs at its own instant, exactly as promised. See README.md in this folder."""
