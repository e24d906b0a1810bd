"""To the same validation loss under every exchange: samples and time, against the exact sum.
`trained_rank` is one rank of a run, `__main__` starts them and judges the curves. May import everything.
"""
