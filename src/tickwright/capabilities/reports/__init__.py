"""Fan-out / gather reports: query many sources at once and merge the parts into one file."""
