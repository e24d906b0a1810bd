"""How much work a job needs: from its loss curve (`convergence`), and from finished jobs (`work_left_predictor`).
May import nothing of the platform; policies, `predict.predictability` and the control plane import it.
"""
