"""The embedded MLflow server, closed: nobody is let in without a password, and no location leads out of its artifacts.

A server process of its own; the rest of `track` does not import it. May import host, settings and errors.
"""
