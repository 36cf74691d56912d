"""The object store, in a folder or a bucket. README.md describes every failure."""
