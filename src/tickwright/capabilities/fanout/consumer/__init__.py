"""The consumer of fan-out: takes tasks from the queue, claims their runs and calls the functions of modules."""
