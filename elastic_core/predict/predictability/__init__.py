"""AITurbo's classifier: can this job's progress be predicted? Its features, its label in hindsight, its stored form.
May import `errors`, `protocol.records`, `predict.forecasts` and `predict.work`; imported inside functions only, since
scikit-learn takes seconds.
"""
