"""The cluster as it is shown to people and programs: who holds each slot, and who waits.

Above the other records, of which it is made; knows nothing of who asks.
"""
