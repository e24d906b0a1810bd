"""`elastic checkpoint`, `elastic ls`, `elastic mount`: checkpoints as what they are, as files, and in other layouts.
May import what every command may; the heavy rooms inside the command.
"""
