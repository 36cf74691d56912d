"""Named databases and files that reports read, configured as ``[sources.NAME]``. Nothing here writes to a source."""

from tickwright.sources.named import Sources, SourceSettings

__all__ = ["SourceSettings", "Sources"]
