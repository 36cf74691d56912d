"""Named databases and files that reports read, each as ``[sources.NAME]`` says; nothing here writes into one."""

from tickwright.sources.named import Sources, SourceTerms

__all__ = ["SourceTerms", "Sources"]
