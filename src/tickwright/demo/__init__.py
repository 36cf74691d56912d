"""The example that ``tickwright up`` runs: receivers in a process of their own, and work for them."""
