"""What a job's record lets expect of its deadline and its budget, as one rule for everybody who says so.

Pure: records in, words out. Knows the contract's records and nothing of who asks.
"""
