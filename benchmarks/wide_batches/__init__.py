"""Whether a wide batch range is safe: final held-out metrics of resized jobs whose batch changes, beside the seeds'
spread at the base batch. May import everything; the product imports nothing of it.
"""
