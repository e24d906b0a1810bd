"""Starts, watches and stops the processes of segments on this host: launchers, the agent, what a group's end means.

Imports host, protocol and state; services and Airflow's tasks import it. What the agent imports must stay small.
"""
