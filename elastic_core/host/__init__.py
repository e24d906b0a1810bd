"""What agents, workers and launchers of one host share: processes, the run dir and its messages, exits, pinning.

Imports errors, settings, spec, and inside functions domain and protocol; launch, train, state and services import it.
"""
