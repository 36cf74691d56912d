"""Files of reports: signed links and range responses."""
