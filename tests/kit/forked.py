"""The imports of the process that others are forked from, once for all of them."""

import gc
from importlib import import_module

NAMES = (
    "kit.batches",
    "kit.consumers",
    "kit.fanout_worlds",
    "kit.kafka_consumers",
    "kit.kafka_polls",
    "kit.receivers",
    "kit.report_faults",
    "kit.wheels",
    "pydantic.v1",  # imported by the first route of an API
    "tickwright.app",
    "tickwright.transports.http",
    "tickwright.transports.postgres",
    "tickwright.cli.program",
    "tickwright.process.api",
    "typer._adapters",  # imported by the first option that is read, and pydantic with it
)

for name in NAMES:
    import_module(name)
gc.collect()
gc.freeze()  # a collection in a forked process would copy the pages that they share
