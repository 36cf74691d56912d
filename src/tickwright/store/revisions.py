"""The schema revision of this release, read from file names, which needs no import of Alembic."""

from importlib import resources


def head_revision() -> str:
    """Return the newest revision of this release, such as ``"0002"``."""
    files = resources.files("tickwright.store.migrations.versions").iterdir()
    return max(file.name.partition("_")[0] for file in files if file.name.endswith(".sql"))
