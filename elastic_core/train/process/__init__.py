"""The processes that run users' code: the worker of a slot, and the children that inspect a task or evaluate it.
Started by the launcher, the commands and Airflow's tasks; nothing else of train imports from here.
"""
