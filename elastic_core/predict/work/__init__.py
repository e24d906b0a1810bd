"""How much work a job needs: from its loss curve (`convergence`), from finished jobs (`work_left_predictor`); what of
it is left (`work_left`), and how that turned out (`graded`). Imports the domain and the forecasts' records only;
policies, `predict.predictability` and the control plane import it.
"""
