"""REST parts that all capabilities share: the gate, bodies, problems, and the HTTP listener."""
