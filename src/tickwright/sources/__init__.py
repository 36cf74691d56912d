"""Named databases and files that reports read, configured as ``[sources.NAME]``. Nothing here writes to a source."""
