"""The REST routes of campaigns, batches and executions."""
