"""How tasks and triggers reach what is outside: the control API, other runs, and what is tried again.

Imports the protocol and Airflow's SDK; operators, triggers and tasks import it.
"""
