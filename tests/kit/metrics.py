"""The metrics of every plugin, as a process has them."""

from tickwright.process.installation import metric_specs

METRICS = tuple(metric_specs())
