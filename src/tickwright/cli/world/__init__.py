"""The example world of ``tickwright up``: a receiver in a process of its own, and jobs for it."""
