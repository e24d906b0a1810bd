"""Uploading one object to S3 by boto3's transfer manager (s3transfer): parts of a multipart upload, a few at a time.

Promises: the object appears whole when the upload completes and not before; a failed upload is aborted, a killed one is
left to the sweeper; at most `UPLOADERS` parts and the ones being read are in memory, however large the object. Requests
are tried again by the store, not by botocore: botocore's pauses draw from Python's global random generator, which is
part of a training job's state (`elastic_core.waiting`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from botocore.exceptions import ClientError
from s3transfer.manager import TransferConfig, TransferManager

from elastic_core.errors import UserError
from elastic_core.state.stores.store import Source

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")
Retry = Callable[[str, Callable[[], T]], T]  # what is being done, for the error's text; the request

PART_BYTES = 32 << 20
MAX_PARTS = 10_000  # S3's own limit
UPLOADERS = 4

_CONFIG = TransferConfig(
    multipart_threshold=PART_BYTES,
    multipart_chunksize=PART_BYTES,
    max_request_concurrency=UPLOADERS,
    max_submission_concurrency=1,
    max_in_memory_upload_chunks=UPLOADERS,
)


def upload(requests: RetriedRequests, bucket: str, target: str, source: Source) -> None:
    """Upload `source` as the object `target`; once this returns it is durable. Iterables are drawn by another thread.

    Raises what `requests` raises, and what the source raises.
    """
    stream: Any
    if isinstance(source, Path):
        stream = str(source)
    elif isinstance(source, bytes):
        stream = io.BytesIO(source)
    else:
        stream = _Stream(source, requests)
    with TransferManager(cast("BaseClient", requests), _CONFIG) as manager:
        manager.upload(stream, bucket, target).result()


class RetriedRequests:
    """The client as the transfer manager sees it: each request of one upload, tried again by `retry`.

    `size()` is the size of the object in the bucket, None if there is none.
    """

    def __init__(self, client: Any, key: str, retry: Retry[Any], size: Callable[[], int | None]) -> None:
        self.meta = client.meta
        self.failed = False  # no part that is still to be read will be used
        self._client, self._key, self._retry, self._size = client, key, retry, size
        self._part_sizes: dict[int, int] = {}

    def put_object(self, **arguments: Any) -> Any:
        return self._send(f"write {self._key}", self._client.put_object, arguments)

    def create_multipart_upload(self, **arguments: Any) -> Any:
        return self._send(f"write {self._key}", self._client.create_multipart_upload, arguments)

    def upload_part(self, **arguments: Any) -> Any:
        number = arguments["PartNumber"]
        if number > MAX_PARTS:
            self.failed = True
            raise UserError(
                f"{self._key} has more than {MAX_PARTS} parts of {PART_BYTES} bytes: S3 does not take it. Use more "
                "writers."
            )
        self._part_sizes[number] = len(arguments["Body"])
        return self._send(f"write part {number} of {self._key}", self._client.upload_part, arguments)

    def complete_multipart_upload(self, **arguments: Any) -> Any:
        def complete(**arguments: Any) -> Any:
            try:
                return self._client.complete_multipart_upload(**arguments)
            except ClientError as error:
                # Completed already, and the answer was lost on its way.
                if not upload_is_gone(error) or self._size() != sum(self._part_sizes.values()):
                    raise
                return None

        return self._send(f"complete {self._key}", complete, arguments)

    def abort_multipart_upload(self, **arguments: Any) -> Any:
        """Called when the upload failed. The transfer manager ignores what this raises: the sweeper finds the rest."""
        return abort(self._client, self._retry, **arguments)

    def _send(self, action: str, request: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        body = arguments.get("Body")

        def attempt() -> Any:
            if body is not None:
                body.seek(0)
            return request(**arguments)

        try:
            return self._retry(action, attempt)
        except BaseException:
            self.failed = True
            raise


def abort(client: Any, retry: Retry[Any], *, Bucket: str, Key: str, UploadId: str) -> None:  # noqa: N803 - boto3's names
    """Remove the parts of an upload; one that is gone is no error."""

    def attempt() -> None:
        try:
            client.abort_multipart_upload(Bucket=Bucket, Key=Key, UploadId=UploadId)
        except ClientError as error:
            if not upload_is_gone(error):
                raise

    retry(f"abort the upload of {Key}", attempt)


def upload_is_gone(error: ClientError) -> bool:
    """Completed or aborted."""
    return bool(error.response.get("Error", {}).get("Code") == "NoSuchUpload")


class _Stream:
    """Buffers that follow each other, to be read as a file is. Each is copied before the next one is taken."""

    def __init__(self, buffers: Iterable[memoryview], requests: RetriedRequests) -> None:
        self._buffers = iter(buffers)
        self._requests = requests
        self._rest = memoryview(b"")

    def read(self, num_bytes: int = -1) -> bytes:
        """All that is left for -1. After a failed request nothing more: the source need not be drawn to its end."""
        pieces: list[bytes] = []
        missing = num_bytes
        while missing and not self._requests.failed:
            if not self._rest.nbytes:
                following = next(self._buffers, None)
                if following is None:
                    break
                self._rest = following
            piece = bytes(self._rest[:missing] if missing > 0 else self._rest)
            pieces.append(piece)
            self._rest = self._rest[len(piece) :]
            missing -= len(piece) if missing > 0 else 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
