"""A job's state, apart from who computes it: where it lies, how it is written, read, moved and cached, in which order.

Eight packages, each of which imports only those before it (and `buffers`):

    order/        which sample is read at which position, a function of (seed, epoch, position)
    layout/       which part of each tensor which rank holds (splits over a mesh), and how two layouts overlap
    stores/       objects by key: a folder or an S3 bucket, one contract
    format/       a checkpoint in a store: manifest, safetensors shards, checksums; writing and reading
    job_code/     a job's code, pinned in the store with its first segment
    memory_tier/  caches of the last checkpoints in the nodes' memory, in front of a store
    store_access/ a job's access to its part of an S3 store, without a key of the store
    reshard/      plans from one layout to another, and carrying them out between processes; collective loads

Trainers, commands and views import from here; nothing here knows a model, a process group or the ledger.
"""
