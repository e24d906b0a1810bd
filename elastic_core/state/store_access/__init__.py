"""Access of one job's processes to one part of an S3 store, without a key of it: the access broker and its clients.

The broker signs requests; bytes go between worker and server. Imports `stores` and the tier's channel, no torch.
"""
