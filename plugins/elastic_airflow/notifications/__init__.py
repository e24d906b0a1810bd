"""What Airflow's notifiers are told of jobs: their ends, by callbacks of DAGs, and that they are at risk, every minute.

The notifiers are the operator's own, named by a setting or given to a pipeline. One that fails or hangs is logged, and
harms neither a job nor the others.
"""
