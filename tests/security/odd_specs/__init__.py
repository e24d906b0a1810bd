"""Odd specs through the API server as it is: Airflow's own app with the plugin mounted, Airflow's login, both databases
in PostgreSQL, a process of its own behind a socket of loopback."""
