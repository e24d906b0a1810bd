"""MLflow, kept up to date from the ledger's outbox: training never waits for it and it can be away for any time.
May import protocol, spec, state, view, train's checkpoints and the control plane; MLflow is imported here only."""
