"""A checkpoint store in an S3 bucket, by boto3.

Large objects go up by boto3's transfer manager (`state.stores.s3_upload`). Large ranges come down in parts of
`_RANGE_BYTES` at once, by our own threads: the transfer manager downloads whole objects only (it takes no `Range`), and
took 1.6 times the processor time for 256 MiB (0.69 s to 0.44 s, rclone; 0.62 s to 0.39 s, moto; medians of 5). Requests
have timeouts and are tried again with growing waits; what no retry can mend (credentials, a missing bucket) fails at
once. Nothing relies on conditional requests, which not every server honours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import accumulate
from typing import Any, TypeVar

import boto3
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from tenacity import Retrying, retry_if_exception, stop_after_attempt
from urllib3.exceptions import HTTPError

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.state.buffers import portions, size_of
from elastic_core.state.stores.keys import check_key, check_prefix, is_key
from elastic_core.state.stores.s3_upload import PART_BYTES, RetriedRequests, abort, upload
from elastic_core.state.stores.store import Entry, Source
from elastic_core.waiting import growing

T = TypeVar("T")

_RANGE_BYTES = 4 << 20  # of one request, where a range is read in parts
_CONNECTIONS = 32  # of 8 threads that each read 16 MiB
_ATTEMPTS = 5
_PERMANENT = {
    "AccessDenied": "the credentials are not allowed to do this",
    "AllAccessDisabled": "the credentials are not allowed to do this",
    "InvalidAccessKeyId": "the server does not know the access key: check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong: check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the credentials have expired",
    "NoSuchBucket": "the bucket does not exist: create it, or correct the store's address",
    "403": "the server refuses the credentials: check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and their rights",
}
_MISSING = ("NoSuchKey", "404", "NotFound")


Signer = Callable[..., None]  # completes `request`, a botocore `AWSRequest`: its address and its signature


class S3Store:
    """See `CheckpointStore`. With a `signer` no credential is looked for: it signs each request."""

    def __init__(self, bucket: str, prefix: str, endpoint: str = "", signer: Signer | None = None) -> None:
        if not bucket:
            raise UserError("An S3 store needs a bucket: s3://bucket/prefix.")
        self._bucket = bucket
        self._base = f"{prefix}/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._endpoint = endpoint
        self._signer = signer
        self._s3: Any = new_client(endpoint) if signer is None else _signed_elsewhere(endpoint, signer)

    def put(self, key: str, source: Source) -> None:
        target = self._key(key)
        if isinstance(source, bytes) and len(source) <= PART_BYTES:
            self._try(f"write {key}", lambda: self._s3.put_object(Bucket=self._bucket, Key=target, Body=source))
        else:
            requests = RetriedRequests(self._s3, key, self._try, lambda: self.size(key))
            upload(requests, self._bucket, target, source)

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:  # no range is empty
            self._require(key)
            return b""

        def read() -> bytes:
            body = self._open(key, offset, length)
            if body is None:
                return b""
            with body:
                data: bytes = body.read()
                return data

        return self._try(f"read {key}", read)

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        ranges = list(portions(buffers, _RANGE_BYTES))
        if len(ranges) < 2:
            return self._read_range(key, offset, buffers)
        starts = accumulate((size_of(part) for part in ranges[:-1]), initial=offset)
        with ThreadPoolExecutor(len(ranges), thread_name_prefix="s3-ranges") as pool:
            return sum(pool.map(partial(self._read_range, key), starts, ranges))

    def _read_range(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        length = size_of(buffers)
        if length == 0:  # no range is empty
            self._require(key)
            return 0

        def read() -> int:
            body = self._open(key, offset, length)
            if body is None:
                return 0
            with body:
                return _fill(body, buffers)

        return self._try(f"read {key}", read)

    def size(self, key: str) -> int | None:
        target = self._key(key)

        def head() -> int | None:
            try:
                return int(self._s3.head_object(Bucket=self._bucket, Key=target)["ContentLength"])
            except ClientError as error:
                if _code(error) not in _MISSING:
                    raise
            try:
                self._s3.head_bucket(Bucket=self._bucket)  # HEAD does not say which of the two is missing
            except ClientError as error:
                if _status(error) != 403:  # credentials for a prefix may not look at the bucket: then it is the object
                    raise
            return None

        return self._try(f"look at {key}", head)

    def list(self, prefix: str) -> Iterable[str]:
        return [entry.key for entry in self.entries(prefix)]

    def entries(self, prefix: str) -> Iterable[Entry]:
        objects = self._pages("list_objects_v2", "Contents", prefix)
        # What is no key is not ours: some servers show the temporary files of their own uploads.
        return [Entry(key, int(item["Size"]), item["LastModified"].timestamp()) for key, item in objects if is_key(key)]

    def unfinished(self, prefix: str) -> Iterable[Entry]:
        uploads = self._pages("list_multipart_uploads", "Uploads", prefix)
        return [Entry(key, 0, item["Initiated"].timestamp()) for key, item in uploads]

    def delete(self, prefix: str) -> None:
        if not check_prefix(prefix):
            raise UserError(f"Deleting everything in {self.url} is not done: name a prefix.")
        for key, item in self._pages("list_multipart_uploads", "Uploads", prefix):
            abort(self._s3, self._try, Bucket=self._bucket, Key=self._base + key, UploadId=item["UploadId"])
        keys = [self._base + key for key, _ in self._pages("list_objects_v2", "Contents", prefix)]
        if self._signer is not None:  # the keys of one request for many stand in its body, which no signer is shown
            for key in keys:
                self._try(f"delete {prefix}", partial(self._s3.delete_object, Bucket=self._bucket, Key=key))
            return
        for at in range(0, len(keys), 1000):
            batch = {"Objects": [{"Key": key} for key in keys[at : at + 1000]], "Quiet": True}
            request = partial(self._s3.delete_objects, Bucket=self._bucket, Delete=batch)
            answer = self._try(f"delete {prefix}", request)
            for error in answer.get("Errors", ()):
                raise InfrastructureError(
                    f"Cannot delete {error.get('Key')} of {self.url}: {error.get('Code')} {error.get('Message', '')}"
                )

    def _key(self, key: str) -> str:
        return self._base + check_key(key)

    def _require(self, key: str) -> None:
        if self.size(key) is None:
            raise FileNotFoundError(f"{self.url} holds no object {key}")

    def _open(self, key: str, offset: int, length: int | None) -> Any:
        """The body of a ranged GET, None where the range starts at or behind the object's end."""
        ranged = {}
        if offset or length is not None:
            ranged["Range"] = f"bytes={offset}-{'' if length is None else offset + length - 1}"
        try:
            return self._s3.get_object(Bucket=self._bucket, Key=self._key(key), **ranged)["Body"]
        except ClientError as error:
            if _code(error) in _MISSING:
                raise FileNotFoundError(f"{self.url} holds no object {key}") from error
            if _code(error) in ("InvalidRange", "416"):
                return None
            raise

    def _pages(self, operation: str, field: str, prefix: str) -> Sequence[tuple[str, Any]]:
        """(key, item) of everything under the prefix that a paged listing gives, sorted by key."""
        trimmed = check_prefix(prefix)
        paginator = self._s3.get_paginator(operation)

        def pages() -> list[Any]:
            try:
                return [*paginator.paginate(Bucket=self._bucket, Prefix=self._base + trimmed)]
            except ClientError as error:
                if _code(error) in ("NoSuchUpload", "NotImplemented"):  # some servers' words for "no uploads"
                    return []
                raise

        items = [item for page in self._try(f"list {prefix or 'everything'}", pages) for item in page.get(field, ())]
        keyed = [(str(item["Key"]).removeprefix(self._base), item) for item in items]
        return sorted(
            ((key, item) for key, item in keyed if not trimmed or key == trimmed or key.startswith(f"{trimmed}/")),
            key=lambda pair: pair[0],
        )

    def _try(self, action: str, request: Callable[[], T]) -> T:
        """The request's answer, after some attempts if need be; what still fails is an `InfrastructureError`."""
        attempts = Retrying(
            stop=stop_after_attempt(_ATTEMPTS),
            wait=growing(0.2, 5.0),
            retry=retry_if_exception(_transient),
            reraise=True,
        )
        try:
            return attempts(request)
        except FileNotFoundError:
            raise
        except (ClientError, BotoCoreError, HTTPError, OSError) as error:
            server = f" at {self._endpoint}" if self._endpoint else ""
            raise InfrastructureError(f"Cannot {action} in {self.url}{server}: {_reason(error)}.") from error


def new_client(endpoint: str) -> Any:
    """A client of the S3 server, AWS for "". Its credentials come from where boto3 looks for them."""
    return _session().client("s3", endpoint_url=endpoint or None, config=_config(endpoint))


def credentials() -> Any:
    """Those that boto3 finds, renewed in time where they expire; None for none."""
    return _session().get_credentials()


def _session() -> boto3.session.Session:
    """One that looks for credentials anew. What boto3 knows of S3 is read once a process: it is a tenth of a second."""
    session = botocore.session.get_session()
    session.register_component("data_loader", _service_models())
    return boto3.session.Session(botocore_session=session)


@cache
def _service_models() -> Any:
    return botocore.session.get_session().get_component("data_loader")


def _signed_elsewhere(endpoint: str, signer: Signer) -> Any:
    """The signer gives each request its address as well: region and server here are those of none."""
    client = _session().client(
        "s3",
        region_name="us-east-1",
        endpoint_url=endpoint or "https://s3.amazonaws.com",
        config=_config("any", signature_version=UNSIGNED),
    )
    client.meta.events.register("before-sign.s3", signer)
    return client


def _config(endpoint: str, **more: Any) -> Any:
    return Config(
        connect_timeout=5,
        read_timeout=60,
        retries={"total_max_attempts": 1},  # tenacity tries again, once and for all requests alike
        max_pool_connections=_CONNECTIONS,
        s3={"addressing_style": "path" if endpoint else "auto"},
        # Checksums in trailers are beyond many servers; ours are in the manifest.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **more,
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _transient(error: BaseException) -> bool:
    if isinstance(error, ClientError):
        return _status(error) in (408, 429, 500, 502, 503, 504) or _code(error) == "RequestTimeout"
    if isinstance(error, (FileNotFoundError, NoCredentialsError, PartialCredentialsError, ParamValidationError)):
        return False
    return isinstance(error, (BotoCoreError, HTTPError, OSError))


def _reason(error: Exception) -> str:
    if isinstance(error, ClientError):
        code = _code(error)
        if error.operation_name == "HeadBucket" and code in _MISSING:
            code = "NoSuchBucket"
        known = _PERMANENT.get(code) or _PERMANENT.get(str(_status(error)))
        return f"{code}, {known}" if known else str(error).rstrip(".")
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return "no credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    return str(error).rstrip(".") or type(error).__name__


def _fill(body: Any, buffers: Sequence[memoryview]) -> int:
    """Read a response into the buffers until it or they end; the number of bytes."""
    done = 0
    for buffer in buffers:
        filled = 0
        while filled < buffer.nbytes:
            num = body.readinto(buffer[filled:])
            if not num:
                return done + filled
            filled += num
        done += filled
    return done
