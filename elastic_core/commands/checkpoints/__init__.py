"""`elastic checkpoint`, `elastic ls`, `elastic mount`: checkpoints as what they are, as files, and in other layouts."""
