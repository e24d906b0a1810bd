"""Operators of the platform's own DAGs; what anybody may use in a DAG is in `operators`.

Only the DAGs import it; torch and MLflow come in where a task runs.
"""
