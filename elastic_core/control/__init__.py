"""The control plane: the ledger, the allocator around every decision, and the API in front of both."""
