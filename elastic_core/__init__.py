"""Elastic training on Airflow: many jobs share one pool of accelerators and are resized while they live."""

__version__ = "0.1.0"
