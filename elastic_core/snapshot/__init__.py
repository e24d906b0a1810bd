"""From what is known of each job to the snapshot that a decision is made from: one way, for the control plane, which
fills the records from its ledger, and for the simulator, which fills them from the jobs that it runs."""
