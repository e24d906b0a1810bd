"""Retraining pipelines: `factory.retraining_dag` makes one of ten lines in a team's DAG file.

What may start a run, what it trains on, when the new model replaces the champion. Above the tasks that any job has;
knows nothing of the page. No torch, mlflow or pandas is imported where a DAG file is read.
"""
