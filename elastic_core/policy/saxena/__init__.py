"""Saxena et al. 2020: their dynamic program as it stands, `elastic_batch` that grew out of it, and their baselines.
May import `policy.base` and `predict`; the registry imports the policies.
"""
