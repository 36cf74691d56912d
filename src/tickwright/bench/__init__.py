"""Measures the product: one module a bench, each with ``main(arguments)``; see ``docs/performance.md``."""
