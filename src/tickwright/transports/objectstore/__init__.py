"""Where files are kept, a folder or a bucket; README.md says what happens when it breaks off."""
