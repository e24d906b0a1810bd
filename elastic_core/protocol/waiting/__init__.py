"""What is told of a job that waits for slots, to whoever asks and by whichever way: one record with its words.

Below the other records, which hold it. Knows the domain's words and nothing of who asks.
"""
