"""What users hand in beside one spec as JSON: files in JSON or YAML, and sweeps, which are many jobs of one spec.
Plain values and specs only: no task's code is asked here, and no ledger."""
