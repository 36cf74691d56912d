"""What operators see: logs, metrics, alert rules. Knows neither the worker nor the relay."""
