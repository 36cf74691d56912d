"""Redis: an accelerator, never the authority; README.md has the keys and the effects of their loss."""
