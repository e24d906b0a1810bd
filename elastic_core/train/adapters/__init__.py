"""Models of other libraries as entry points: the library's own object says what is trained, the session trains it.

Nothing of a library is imported here. What it looks for in the environment of a process that is one of several, it does
not find (`one_process`): ranks, samples and gradients are the platform's.
"""
