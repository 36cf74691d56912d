"""``tickwright up`` and ``top``: the overview in a terminal."""
