"""How much work a job will be and what its steps will take, learnt from the jobs of this installation.
May import `errors`, `domain`, `protocol.records`, `predict.work`; what needs scikit-learn is imported in functions.
"""
