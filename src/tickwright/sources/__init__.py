"""Named databases and files that reports read, each as ``[sources.NAME]`` says; nothing here writes into one."""

from tickwright.sources.named import Sources, SourceSettings

__all__ = ["SourceSettings", "Sources"]
