"""The virtual file system `elastic://`: what a job's checkpoints hold, as a read-only tree of folders and files.

Nothing here is a second reader: manifests, tensors, layouts and the order of the data come from the functions that the
ranks use. Tenplex (arXiv 2312.05181, 5.2) gives its workers such a tree; here it is for people and their tools.
May import state, train.data and domain; commands, track and fsspec's registry import it.
"""
