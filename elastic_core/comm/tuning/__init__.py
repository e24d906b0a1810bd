"""Which exchange a job uses where its spec leaves that open: predicted from the links, tried, chosen.
Imports the rest of comm, domain and torch only; made by `comm.algorithms`' name `auto`, driven by the session.
"""
