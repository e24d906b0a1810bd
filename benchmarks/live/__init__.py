"""The live benchmark: policies on the real services, with jobs whose step times are a profile's.
May import elastic_core, examples, benchmarks.common and the platform of the e2e tests.
"""
