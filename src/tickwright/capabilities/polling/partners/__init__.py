"""Partners as operators see them: settings, status and quiet hours."""
