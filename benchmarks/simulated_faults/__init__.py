"""The control plane under faults drawn from a seed: real ledger, scheduling, transitions and wire format on a real
PostgreSQL; simulated processes, network, launcher, trainers, store, Airflow, MLflow and clocks.
Run as `python -m benchmarks.simulated_faults`; docs/design/simulated-faults.md says what is real and what is not."""
