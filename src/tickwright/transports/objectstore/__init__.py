"""Where files are kept, a folder or a bucket; README.md says what happens when it breaks off."""

from tickwright.transports.objectstore.opening import open_store

__all__ = ["open_store"]
