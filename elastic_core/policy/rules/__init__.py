"""What a job may claim beside the objective: starvation, guaranteed shares, priorities, deadlines, no flapping.
May import `policy.base` and `predict`; `policy.horizon` imports it, through `rules.share_out`.
"""
