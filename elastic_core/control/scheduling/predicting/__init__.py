"""What decisions are told beside what the ledger holds: who can be predicted, work, steps; and how that is learnt.

`predictors` answers for one process, between decisions; `refit` is what Airflow's task runs; both describe jobs to
scikit-learn in the same way (`submissions`).
"""
