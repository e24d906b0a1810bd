"""What the ledger tells as metrics: families of fixed names, read when they are asked for, in Prometheus' words.

Knows the ledger and nothing above it, and changes nothing; the control plane has a `Meter`, its HTTP side one route.
"""
