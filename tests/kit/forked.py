"""What the process that others are forked from imports, once for all of them."""

import gc

import tickwright.app
import tickwright.cli.program
import tickwright.wiring.api  # noqa: F401

gc.collect()
gc.freeze()  # a collection in a forked process would copy the pages of what they share
