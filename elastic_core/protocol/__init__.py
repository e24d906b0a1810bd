"""Messages between control plane, launcher, trainer and Airflow: contracts, records, encoding, tokens, HTTP client.

Everybody may import it. It imports the domain, specs and errors, and nothing that implements a contract.
"""
