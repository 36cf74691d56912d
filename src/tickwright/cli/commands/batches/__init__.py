"""Commands of batches, campaigns and their executions."""
