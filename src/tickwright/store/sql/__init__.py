"""SQL that several rooms share: one file a subject."""
