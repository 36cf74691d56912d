"""The partner contract: limits that all processes together keep in calls to other companies' services."""
