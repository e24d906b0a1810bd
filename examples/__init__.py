"""Training tasks to copy from, and the demo (`python -m examples.demo`).
They import what users may: `elastic_core.train`'s top files, torch and data sets; the demo also talks to services."""
