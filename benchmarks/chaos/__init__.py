"""Real chaos: the whole platform with jobs at work, and kills, stops and outages of every kind of process.

May import elastic_core, examples, benchmarks.common and the platform of the e2e tests; the product imports nothing of
it.
"""
