"""Users' code as another Unix user (`ELASTIC_WORKER_USER`): who that is, becoming it, what it is given, reading what it
wrote. Standard library, errors and settings only: host, launch, state and services import it, agents too.
"""
