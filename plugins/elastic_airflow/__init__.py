"""The platform in Airflow: plugin, operators, triggers, page. Airflow's DAGs and its API server import it.

It speaks to the control plane by `protocol`; only the API server's side, and the refit of predictors, import
`elastic_core.control`.
"""
