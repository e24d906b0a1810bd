"""The platform's page: its data from the control plane, and its files.

Only `api_server` imports it.
"""
