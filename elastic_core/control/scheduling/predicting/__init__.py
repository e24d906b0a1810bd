"""What decisions are told beside what the ledger holds: who can be predicted, work, steps; and how that is learnt.

`predictors` answers for one process, between decisions; `refit` is what Airflow's task runs; both describe jobs to
scikit-learn in the same way (`submissions`). `refit` learns who can be predicted from `lessons`, and how much forecasts
of work are worth from jobs that were `held_out`, which asks what the default policy would have expected of them
(`expected_work`).
"""
