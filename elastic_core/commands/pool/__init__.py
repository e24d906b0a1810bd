"""`elastic cluster`, `elastic nodes`, `elastic policy`: what is in the pool, which nodes take jobs, what decides.

As the other commands may, they import everything but Airflow.
"""
