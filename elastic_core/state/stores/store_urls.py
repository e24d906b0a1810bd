"""Opening a checkpoint store by its address: a folder, `file://...`, or `s3://bucket/prefix`.

The one place that knows which kinds there are. Opening touches nothing and imports only what the kind needs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elastic_core.errors import UserError
from elastic_core.state.stores.keys import check_prefix
from elastic_core.state.stores.store import CheckpointStore


def open_store(
    url: str, *, prefix: str = "", endpoint: str = "", signer: Callable[..., None] | None = None
) -> CheckpointStore:
    """The store at `url`, a folder (also `file://...`) or `s3://bucket/prefix`; `prefix` narrows it further.

    `endpoint` is the S3 server, empty for AWS. S3 credentials come from where boto3 looks for them: environment,
    shared files, the machine's role; with a `signer` (`state.stores.s3_store`) from nowhere. Opening touches nothing.
    Raises `UserError` for any other address.
    """
    below = check_prefix(prefix)
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "s3":
        from elastic_core.state.stores.s3_store import S3Store  # boto3 takes long to import: only for those who use it

        bucket, _, path = rest.partition("/")
        return S3Store(bucket, "/".join(filter(None, (check_prefix(path), below))), endpoint, signer)
    if separator and scheme != "file":
        raise UserError(f"{url!r} is no checkpoint store: give a folder or s3://bucket/prefix.")
    folder = rest if separator else url
    if not folder:
        raise UserError("A checkpoint store needs an address: a folder or s3://bucket/prefix.")
    from elastic_core.state.stores.local_store import LocalStore

    return LocalStore(Path(folder).absolute() / below)
