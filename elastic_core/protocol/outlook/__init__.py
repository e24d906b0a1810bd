"""What a job's record lets say of why it waits, and expect of its deadline and its budget: one rule for everybody.

Pure: records in, words out. Knows the contract's records and nothing of who asks.
"""
