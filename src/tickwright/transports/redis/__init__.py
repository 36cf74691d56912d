"""Redis: an accelerator, never the authority; README.md has the keys and what happens when they are lost."""
