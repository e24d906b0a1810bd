"""Elastic training on Airflow: many jobs share one pool of accelerators and are resized while they live.

Rooms and who may know whom: docs/design/architecture.md, held by `make check` (.importlinter). Knows no Airflow.
"""

__version__ = "0.1.0"
