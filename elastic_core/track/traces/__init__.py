"""A job's life as OpenTelemetry traces, told by the ledger's outbox.
May import OpenTelemetry's SDK; Airflow not."""
