"""``tickwright doctor``: checks of an installation."""
